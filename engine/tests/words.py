"""A tiny real tokenizer, byte-level BPE, whose multi-byte characters fall apart into ids; and a folder with a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from specdec.testing.targets import tiny_target

SPECIAL = ("<pad>", "<eos>", "<user>", "<model>")
TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'user' %}<user>{% else %}<model>{% endif %}"
    "{{ message['content'] }}{% endfor %}{% if add_generation_prompt %}<model>{% endif %}"
)
CORPUS = ("the cat sat on the mat and the hat", "a cat and a hat", "the mat the mat the mat")


def tiny_tokenizer(chat_template: str | None = TEMPLATE) -> Any:
    """All 256 bytes, a few merges of common words, and special tokens."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet) + len(SPECIAL) + 24,
        special_tokens=list(SPECIAL),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>")
    fast.chat_template = chat_template
    return fast


def spaced_tokenizer() -> Any:
    """Whole words with a mark for the space before them, which decoding drops at the start of a text."""
    from transformers import PreTrainedTokenizerFast

    words = sorted({f"▁{word}" for text in CORPUS for word in text.split()})
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(["<unk>", *words])}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", clean_up_tokenization_spaces=True)


def model_folder(folder: Path, chat_template: str | None = TEMPLATE) -> Path:
    """Save a tiny Llama and its tokenizer as a folder that `LLM(model)` reads."""
    tokenizer = tiny_tokenizer(chat_template)
    model = tiny_target("llama", vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder

"""A tiny real tokenizer, byte-level BPE, whose multi-byte characters fall apart into ids; and a folder with a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from specdec_testing.targets import tiny_target

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


def pieces_tokenizer(pieces: Sequence[str | bytes]) -> Any:
    """Id i is the i-th piece of text or of its bytes, whatever stands in it; only decoding makes sense."""
    from transformers import PreTrainedTokenizerFast

    # The alphabet has a character for each byte: printable ones stand for themselves, the rest for the others in order.
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    others = iter(sorted(c for c in alphabet if ord(c) > 255))
    spelling = [chr(byte) if chr(byte) in alphabet else next(others) for byte in range(256)]
    # Ids of the same piece need different names, which decoding takes off again.
    names = {
        f"{i}\x1f" + "".join(spelling[byte] for byte in (piece.encode() if isinstance(piece, str) else piece)): i
        for i, piece in enumerate(pieces)
    }
    tokenizer = Tokenizer(models.WordLevel(names, unk_token=next(iter(names))))
    pattern = Regex(r"^[0-9]+\x1f")
    tokenizer.decoder = decoders.Sequence([decoders.Replace(pattern, ""), decoders.ByteLevel()])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def fallback_tokenizer() -> Any:
    """Letters, and ids of one byte for all else: a run of bytes decodes to replacements while its end is missing."""
    from transformers import PreTrainedTokenizerFast

    vocab = {text: i for i, text in enumerate(["<unk>", *"abcdefgh ", *(f"<0x{byte:02X}>" for byte in range(256))])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


def model_folder(folder: Path, chat_template: str | None = TEMPLATE) -> Path:
    """Save a tiny Llama and its tokenizer as a folder that `LLM(model)` reads."""
    tokenizer = tiny_tokenizer(chat_template)
    model = tiny_target("llama", vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def lettered_tokenizer(size: int, eos: int = 2) -> Any:
    """`size` ids of one character each, but for the end of the text and the ids below it, which are special."""
    from transformers import PreTrainedTokenizerFast

    special = [f"<{i}>" for i in range(eos + 1)]
    vocab = {text: i for i, text in enumerate(special + sorted(pre_tokenizers.ByteLevel.alphabet())[: size - eos - 1])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=special[eos])

"""Small tokenizers of the kinds that models have: words by number, byte-level BPE, unigram pieces with metaspaces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = (
    "The old harbour lay quiet while the boats came home, one after the other.",
    "She counted them: eleven, twelve, thirteen; the fourteenth was late again.",
    "Whoever waits at the window knows the names of all the boats by heart.",
    "In the evening the harbour smelled of tar, salt and fresh bread.",
    "Ein Schiff wird kommen, and it will bring letters from the other side.",
    "def count(boats):\n    return len([b for b in boats if b.home])\n",
    "Naïve façade, déjà vu: 日本語のテキスト, Ελληνικά, русский текст and emoji 🚢🌊.",
    "Prices rose by 12.5 % in 2024; the baker said it was the flour, the flour, the flour.",
)


def fast(tokenizer: Tokenizer, **special: str) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **special)


def numbered(names: Mapping[int, str] | Iterable[str], unk: str | None = None, eos: str | None = None) -> Any:
    """Words with given ids; an id that has no name is in no vocabulary."""
    named = dict(names) if isinstance(names, Mapping) else dict(enumerate(names))
    tokenizer = Tokenizer(models.WordLevel({name: i for i, name in named.items()}, unk_token=unk or named[min(named)]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {key: value for key, value in (("unk_token", unk), ("eos_token", eos)) if value is not None}
    return fast(tokenizer, **special)


def byte_level(size: int = 400, corpus: Iterable[str] = CORPUS) -> Any:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<|end|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    return fast(tokenizer, eos_token="<|end|>")


def metaspace(size: int = 260, corpus: Iterable[str] = CORPUS, *, bos: bool = True) -> Any:
    """Unigram pieces that begin a text with a space of their own, as SentencePiece does, and bytes for the rest."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    trainer = trainers.UnigramTrainer(
        vocab_size=size, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(corpus, trainer)
    pieces = trained_pieces(tokenizer)
    pieces[3:3] = [(f"<0x{byte:02X}>", -20.0) for byte in range(256)]
    tokenizer.model = models.Unigram(pieces, 0, byte_fallback=True)
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)]
        )
    return fast(tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def trained_pieces(tokenizer: Tokenizer) -> list[tuple[str, float]]:
    import json

    return [(piece, score) for piece, score in json.loads(tokenizer.to_str())["model"]["vocab"]]

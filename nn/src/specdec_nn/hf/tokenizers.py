"""From a folder, a .gguf file or a hub id to a tokenizer of transformers, and why one that is there cannot be read."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from specdec_core.config.remote_code import AUTO_MAP, code_of_tokenizer
from specdec_core.errors import TargetError
from specdec_nn.hf.loading import GGUF, ModelSource, config_data, load_config

# Files of which at least one is there if a folder has a tokenizer at all.
FILES: Final = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "tokenizer.model.v3",
    "tekken.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "special_tokens_map.json",
)
# Distributions of modules that transformers' tokenizers import; others are not guessed from a module's name.
PACKAGES: Final = {
    "fugashi": "fugashi",
    "google": "protobuf",
    "ipadic": "ipadic",
    "jieba": "jieba",
    "mistral_common": "mistral-common",
    "rjieba": "rjieba",
    "sacremoses": "sacremoses",
    "sentencepiece": "sentencepiece",
    "tiktoken": "tiktoken",
}
MODES: Final = ("auto", "hf", "slow")


def load_tokenizer(source: ModelSource, mode: str = "auto") -> Any | None:
    """Load the tokenizer that lies beside the weights, or return None if there is none.

    mode  "auto" or "hf": the fast tokenizer where there is one; "slow": the other

    Raises TargetError for one that is there and cannot be read: a broken file, a package that it needs, or code of its
    own that may not run.
    """
    from transformers import AutoTokenizer

    if mode not in MODES:
        message = f"tokenizer_mode={mode!r} is none of {', '.join(map(repr, MODES))}"
        raise TargetError(message)
    _refuse_code(source)
    arguments = {"use_fast": False} if mode == "slow" else {}
    if source.patch is not None:  # of a config.json which transformers does not know
        arguments["config"] = load_config(source)
    try:
        return AutoTokenizer.from_pretrained(source.place, **source.arguments, **arguments)
    except Exception as error:  # readers of many formats, each with errors of its own
        found = tokenizer_files(source)
        if not found:
            return None
        raise _failed(source, found, error) from error


def _refuse_code(source: ModelSource) -> None:
    from transformers.models.auto.tokenization_auto import get_tokenizer_config

    if source.runs_code:
        return
    try:
        tokenizer = get_tokenizer_config(source.place, revision=source.revision)
    except (OSError, ValueError):  # what cannot be read is reported, or is no tokenizer, where it is loaded
        return
    if not tokenizer.get(AUTO_MAP):
        return
    try:
        config = {} if source.gguf_file is not None else config_data(source)
    except (OSError, ValueError):
        config = {}
    source.refuse(code_of_tokenizer(tokenizer, config))


def load_named_tokenizer(name: str, revision: str | None = None, mode: str = "auto", *, runs_code: bool = False) -> Any:
    """Load a tokenizer from a folder that need have nothing else, a .gguf file, or a hub id.

    Raises TargetError if there is none, or none that can be read.
    """
    source = replace(tokenizer_source(name, revision), runs_code=runs_code)
    tokenizer = load_tokenizer(source, mode)
    if tokenizer is None:
        local = Path(source.place).is_dir()
        where = f"the folder has none of {', '.join(FILES)}" if local else "no hub id of this name has one here"
        message = f"tokenizer {name!r} cannot be loaded: {where}"
        raise TargetError(message)
    return tokenizer


def tokenizer_source(name: str, revision: str | None = None) -> ModelSource:
    """Return where a tokenizer is; its folder need have no config.json and no weights. Raises TargetError."""
    path = Path(name).expanduser()
    if name.endswith(GGUF):
        return ModelSource.of(name, revision)
    if not path.exists() and not name.startswith((".", "/", "~")):
        return ModelSource(name, name, revision=revision)
    if revision is not None:
        message = f"tokenizer_revision={revision!r} is of a hub id, but tokenizer {name!r} is a local path"
        raise TargetError(f"{message}; leave it out")
    if not path.exists():
        message = f"tokenizer {name!r}: there is no such folder"
        raise TargetError(message)
    folder = path if path.is_dir() else path.parent
    return replace(ModelSource(name, str(folder)), name=name)


def tokenizer_files(source: ModelSource) -> list[str]:
    """Return the files of a tokenizer that a source has on this machine; a .gguf file counts as one."""
    if source.gguf_file is not None:
        return [source.gguf_file]
    folder = Path(source.place)
    if folder.is_dir():
        return [name for name in FILES if (folder / name).is_file()]
    from huggingface_hub import try_to_load_from_cache

    try:
        return [n for n in FILES if isinstance(try_to_load_from_cache(source.place, n, revision=source.revision), str)]
    except Exception:  # a name that is no hub id
        return []


def _failed(source: ModelSource, found: list[str], error: Exception) -> TargetError:
    """Return the one error for a tokenizer that is there: what could not be read, what lacks, what to do."""
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None and len(causes) < 8:
        causes.append(cause)
    names = [cause.name or "" for cause in causes if isinstance(cause, ModuleNotFoundError)]
    lacking = [name.partition(".")[0] for name in names if name]
    what, step = "cannot be read", "repair it"
    if lacking:
        package = lacking[-1]
        # transformers looks for this one first, and then names another one.
        if importlib.util.find_spec("sentencepiece") is None and any(name.endswith(".model") for name in found):
            package = "sentencepiece"
        what, step = f"needs the package {package}", "install it, as on the model's page"
        if package in PACKAGES:
            step = f"pip install {PACKAGES[package]}"
    said = "; ".join(dict.fromkeys(_short(cause) for cause in (causes[0], causes[-1])))
    return TargetError(
        f"model {source.name!r} has a tokenizer ({', '.join(found[:4])}) that {what}: {said}. Next: {step}; or, of a "
        "target, pass tokenizer= to LLM, or skip_tokenizer_init=True to work with ids"
    )


def _short(error: BaseException) -> str:
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said[:200] or 'no message'}" + ("..." if len(said) > 200 else "")

"""From what the caller names to a model, with one clear error for what cannot be loaded; for tokenizers see there."""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from specdec_core.config import checkpoint, gguf_file
from specdec_core.config.remote_code import TARGET_PERMISSION, NeededCode, code_of_generation, code_of_model
from specdec_core.config.tensor_files import check_is_no_pointer
from specdec_core.errors import ConfigError, TargetError
from specdec_nn.hf.large_pages import to_large_pages

GGUF = ".gguf"
WEIGHT_PATTERNS = ("*.safetensors", "*.bin", "*.pt")
REPORT = "log_state_dict_report"  # the function of transformers that logs the table of tensors after a load
LISTED = 8

logger = logging.getLogger("specdec_nn.hf")


def resolve_device(device: str) -> torch.device:
    """Return the device; "auto" is a GPU if there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        message = f"device={device!r} cannot be used: {first_line(error)}"
        raise TargetError(message) from None
    return chosen


def resolve_dtype(dtype: str | torch.dtype) -> str | torch.dtype:
    """Return a torch dtype, or "auto" for the checkpoint's own."""
    if isinstance(dtype, torch.dtype) or dtype == "auto":
        return dtype
    names = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "half": torch.float16}
    names |= {"float": torch.float32, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    if dtype not in names:
        message = f"dtype={dtype!r} is unknown; expected 'auto', {', '.join(repr(n) for n in sorted(names))}"
        raise TargetError(message)
    return names[dtype]


@dataclass(frozen=True)
class ModelSource:
    """Where a model is, as transformers wants to be told.

    name       as the caller gave it
    place      a local folder or a hub id
    gguf_file  the .gguf file in it that holds everything; None for a folder of separate files
    revision   branch, tag or commit of a hub id; None for its main branch
    runs_code  whether code that comes with the model may run; `code_revision` is that code's, None as `revision`
    permission how the caller would allow it, for the message that refuses it
    patch      keys that take the place of those in config.json, or take them out (None); for types that transformers
               does not know
    """

    name: str
    place: str
    gguf_file: str | None = None
    revision: str | None = None
    runs_code: bool = False
    code_revision: str | None = None
    patch: Mapping[str, Any] | None = None
    permission: str = TARGET_PERMISSION

    @classmethod
    def of(cls, model: str, revision: str | None = None, runs_code: bool = False) -> ModelSource:
        """Read a folder, a .gguf file, a hub id, or `org/name/file.gguf` (also `org/name:file.gguf`) of the hub.

        Raises TargetError for a local path that has no model, and for a revision of one.
        """
        path = Path(model).expanduser()
        local = path.exists() or model.startswith((".", "/", "~"))
        if local and revision is not None:
            message = f"revision={revision!r} is of a hub id, but model {model!r} is a local path; leave it out"
            raise TargetError(message)
        if not model.endswith(GGUF):
            _check_place(model, path if local else None)
            return cls(model, str(path) if local else model, revision=revision, runs_code=runs_code)
        if importlib.util.find_spec("gguf") is None:
            message = f"reading {model!r} needs the package gguf: pip install 'specdec-nn[gguf]'"
            raise TargetError(message)
        file = None if local else gguf_file.on_hub(model)
        if file is not None:
            return cls(model, *file, revision, runs_code)
        if not path.is_file():
            message = f"model {model!r} is not a file here; expected a path of a .gguf file, or org/name/file.gguf"
            raise TargetError(message)
        return cls(model, str(path.parent), path.name, runs_code=runs_code)

    @property
    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of every `from_pretrained`; transformers asks on the terminal unless told yes or no."""
        given = {"gguf_file": self.gguf_file, "revision": self.revision, "code_revision": self.code_revision}
        named = {name: value for name, value in given.items() if value is not None}
        return {**named, "trust_remote_code": self.runs_code}

    def refuse(self, code: NeededCode | None) -> None:
        """Raise TargetError for code that the checkpoint needs and that may not run."""
        if code is not None and not self.runs_code:
            raise TargetError(f"model {code.message(self.name, self.permission)}")

    def failed(self, what: str, error: Exception) -> TargetError:
        """Return the one error for what transformers could not read."""
        if Path(self.place).is_dir():
            return TargetError(f"model {self.name!r} cannot be loaded, {what} cannot be read: {first_line(error)}")
        at = "" if self.revision is None else f" at revision {self.revision!r}"
        return TargetError(
            f"model {self.name!r}{at} is no local path, and {what} of a hub id of this name cannot be had: "
            f"{first_line(error)}. Check the name, or pass a folder; offline, only what was fetched before is there"
        )


def _check_place(model: str, path: Path | None) -> None:
    """Raise TargetError for a folder (at `path`) without a model, or for a hub id that only names a kind of .gguf."""
    if path is not None:
        _check_folder(model, path)
        return
    try:
        gguf_file.on_hub(model)
    except ConfigError as error:
        raise TargetError(f"model {error}") from error


def _check_folder(model: str, path: Path) -> None:
    if not path.is_dir():
        message = f"model {model!r} is not a folder; expected a folder with config.json and weights, or a hub id"
        raise TargetError(message)
    adapter = checkpoint.adapter_problem(path)
    if adapter is not None:
        raise TargetError(f"model {model!r} {adapter}")
    if not (path / "config.json").is_file():
        packed = sorted(file.name for file in path.glob("*" + GGUF))
        hint = f"pass one of its files: {', '.join(packed)}" if packed else "is it what save_pretrained wrote?"
        message = f"model folder {model!r} has no config.json; {hint}"
        raise TargetError(message)
    try:
        for file in (path / "config.json", *(file for pattern in WEIGHT_PATTERNS for file in path.glob(pattern))):
            check_is_no_pointer(file)
    except ConfigError as error:
        raise TargetError(f"model {model!r} cannot be loaded: {error}") from error
    if not any(next(path.glob(pattern), None) for pattern in WEIGHT_PATTERNS):
        message = f"model folder {model!r} has a config.json but no weights ({', '.join(WEIGHT_PATTERNS)})"
        raise TargetError(message)


def is_known_type(model_type: Any) -> bool:
    """Return whether the installed transformers has a configuration class for a `model_type`."""
    from transformers import CONFIG_MAPPING

    return model_type in CONFIG_MAPPING


def load_config(source: ModelSource) -> Any:
    """Return the model's transformers configuration without loading weights; raises TargetError."""
    from transformers import CONFIG_MAPPING, AutoConfig

    try:
        if source.gguf_file is not None:  # it holds everything, and names no code
            return AutoConfig.from_pretrained(source.place, **source.arguments)
        data = config_data(source)
        source.refuse(code_of_generation(Path(source.place)))
        source.refuse(code_of_model(data))
        if source.patch is None:
            return AutoConfig.from_pretrained(source.place, **source.arguments)
        return CONFIG_MAPPING[data["model_type"]].from_dict(data)
    except TargetError:
        raise
    except Exception as error:  # readers of many formats, each with errors of its own
        raise source.failed("the configuration", error) from error


def config_data(source: ModelSource) -> dict[str, Any]:
    """Return config.json as plain data, with the source's patch."""
    from transformers import PreTrainedConfig

    data, _ = PreTrainedConfig.get_config_dict(source.place, **source.arguments)
    patch = source.patch or {}
    return {key: value for key, value in {**data, **patch}.items() if patch.get(key, 0) is not None}


def load_model(source: ModelSource, dtype: Any, device: torch.device, quantization: Any | None = None) -> nn.Module:
    """Load a causal language model for inference; the weights of a .gguf file become plain ones of that dtype.

    Of a model of text and images or sound, everything is loaded, and its language model is what runs on ids.
    `quantization` is a quantisation configuration of transformers, for plain weights that shall be quantised.
    """
    import transformers

    arguments = source.arguments | _patched(source)
    auto = auto_class_of(None if source.gguf_file is not None else load_config(source))
    if quantization is not None:
        arguments["quantization_config"] = quantization
    if device.type != "cpu" and (quantization is not None or _is_quantised(source)):
        arguments["device_map"] = {"": device}  # quantised weights are packed where they will stay
    if source.gguf_file is not None and hasattr(transformers, "GgufConfig"):
        arguments["quantization_config"] = transformers.GgufConfig(dequantize=True)
    try:
        with _quiet_unless_terminal(), _without_report():
            loaded: nn.Module
            loaded, info = auto.from_pretrained(source.place, dtype=dtype, output_loading_info=True, **arguments)
    except Exception as error:  # readers of many formats, each with errors of its own
        raise source.failed("the weights", error) from error
    if info["missing_keys"]:  # transformers draws them at random, with no more than a line in its log
        missing = sorted(info["missing_keys"])
        message = f"model {source.name!r} lacks {len(missing)} of its tensors: {', '.join(missing[:8])}"
        raise TargetError(message + (", ..." if len(missing) > 8 else "") + "; is its checkpoint whole?")
    if info["unexpected_keys"]:
        _report_unused(source, sorted(info["unexpected_keys"]))
    if device.type == "cpu":
        to_large_pages(loaded)
    return (loaded if "device_map" in arguments else loaded.to(device)).eval()


def auto_class_of(config: Any | None) -> Any:
    """Return the class of transformers that makes models of a configuration: of those that are one, causal ones.

    `config` None, and what no class is for (such as code that comes with a model), stands for causal ones as well.
    """
    import transformers

    causal = transformers.AutoModelForCausalLM
    for name in ("AutoModelForCausalLM", "AutoModelForImageTextToText", "AutoModelForMultimodalLM"):
        auto = getattr(transformers, name, causal)
        if type(config) in auto._model_mapping:
            return auto
    return causal


def _report_unused(source: ModelSource, names: list[str]) -> None:
    """Log the tensors of a checkpoint that its model has no use for, in one line.

    Where a method knew what the model is made like, they are most likely that method's own: then this is no warning.
    """
    level = logging.WARNING if source.patch is None else logging.INFO
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    logger.log(level, "model %r has tensors that it does not use: %s%s", source.name, ", ".join(names[:LISTED]), more)


def _is_quantised(source: ModelSource) -> bool:
    return source.gguf_file is None and getattr(load_config(source), "quantization_config", None) is not None


def _patched(source: ModelSource) -> dict[str, Any]:
    """Return the argument that keeps transformers from reading a config.json which it does not know."""
    return {} if source.patch is None else {"config": load_config(source)}


def eos_ids(model: nn.Module, tokenizer: Any | None) -> frozenset[int]:
    """Return the ids that end a text: the generation configuration's, the model's and the tokenizer's."""
    found: set[int] = set()
    for holder in (getattr(model, "generation_config", None), model.config, tokenizer):
        ids = getattr(holder, "eos_token_id", None)
        found.update([ids] if isinstance(ids, int) else ids or ())
    return frozenset(found)


def first_line(error: BaseException) -> str:
    """Return the kind of an error and the first line of what it says."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"


@contextmanager
def _without_report() -> Iterator[None]:
    """Keep transformers' table of missing and unused tensors off the log: what it tells is raised or logged here."""

    def is_other(record: logging.LogRecord) -> bool:
        return record.funcName != REPORT

    reporting = logging.getLogger("transformers.modeling_utils")
    reporting.addFilter(is_other)
    try:
        yield
    finally:
        reporting.removeFilter(is_other)


@contextmanager
def _quiet_unless_terminal() -> Iterator[None]:
    """Keep the progress bar of the weights off logs, and leave the setting and torch's generator as they were."""
    from transformers.utils import logging as settings

    was_on = settings.is_progress_bar_enabled()
    if not sys.stderr.isatty():
        settings.disable_progress_bar()
    try:
        with torch.random.fork_rng(devices=[]):  # transformers draws tensors that a checkpoint lacks
            yield
    finally:
        if was_on:
            settings.enable_progress_bar()

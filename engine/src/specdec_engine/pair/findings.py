"""What the files of a target and a draft tell of whether they fit: vocabularies, widths, layers, positions, dtypes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch

from specdec_core.config.speculative import ResolvedConfig
from specdec_core.errors import ConfigError, SpecdecError
from specdec_core.sources import HIDDEN_SIZE, DraftSource, TargetInfo, language_config
from specdec_nn.checkpoints.maps import map_problem
from specdec_nn.checkpoints.weights import read_tensors
from specdec_nn.hf.loading import ModelSource
from specdec_nn.hf.tokenizers import load_tokenizer, tokenizer_files

State = Literal["ok", "note", "problem"]
SPECIAL: Final = ("bos_token_id", "eos_token_id", "pad_token_id")
ROPE: Final = ("rope_parameters", "rope_scaling", "rope_theta")
MAP: Final = "vocabulary map"
DTYPE: Final = "dtype"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `state`: "problem" if drafts will be wrong by it, "note" if they may be."""

    topic: str
    state: State
    text: str

    def __str__(self) -> str:
        """Return one line for people."""
        return f"{self.topic}: {self.state}: {self.text}"


def look(target: TargetInfo, resolved: ResolvedConfig) -> Iterator[Finding]:
    """Yield what the files tell of a pair whose configuration was resolved, so that the method's own checks passed."""
    traits = resolved.traits
    yield Finding("method", "ok", f"{resolved.method}, of {resolved.record.distribution} {resolved.record.version}")
    yield _layers(target, resolved)
    if resolved.draft is None:
        yield Finding("checkpoint", "ok", "the method has none")
        return
    draft = resolved.draft
    config = language_config(draft.hf_config)
    yield _widths(target, config)
    yield _positions(target, resolved, config)
    yield _dtypes(target, config)
    yield from _maps(target, draft)
    if traits.weights == "own":
        yield from _tokenizers(target, draft, traits.vocabulary)


def _widths(target: TargetInfo, config: Mapping[str, Any]) -> Finding:
    own = next((config[key] for key in HIDDEN_SIZE if isinstance(config.get(key), int)), None)
    told = {key: config[key] for key in ("target_hidden_size", "hidden_size") if isinstance(config.get(key), int)}
    said = f"the target's is {target.hidden_size}, the draft's config.json has {told or 'none'}"
    if (given := told.get("target_hidden_size")) is not None and given != target.hidden_size:
        return Finding("hidden size", "problem", f"{said}; target_hidden_size is of another target")
    return Finding("hidden size", "ok" if own in (None, target.hidden_size) else "note", said)


def _layers(target: TargetInfo, resolved: ResolvedConfig) -> Finding:
    traits = resolved.traits
    states = [*(["the final hidden state"] if traits.hidden else [])]
    if traits.aux_layers:
        states.append(f"the residual stream after layers {list(traits.aux_layers)} of {target.num_layers}")
    wrong = [layer for layer in traits.aux_layers if not 0 <= layer <= target.num_layers]
    text = f"the method reads {' and '.join(states) or 'none of them'}"
    return Finding("states", "problem" if wrong else "ok", text + (f"; there is no layer {wrong[0]}" if wrong else ""))


def _positions(target: TargetInfo, resolved: ResolvedConfig, config: Mapping[str, Any]) -> Finding:
    own = resolved.draft.max_model_len if resolved.draft is not None else None
    said = f"the target takes {target.max_model_len}, the draft's config.json has {own or 'no limit'}"
    if resolved.traits.max_position is not None:
        return Finding("positions", "note", f"{said}; no drafts from position {resolved.traits.max_position} on")
    ours = language_config(target.hf_config)
    differing = [key for key in ROPE if key in config and key in ours and config[key] != ours[key]]
    if differing and resolved.traits.vocabulary != "other":
        key = differing[0]
        text = f"{said}; {key} is {_plain(config[key])}, the target's is {_plain(ours[key])}"
        return Finding("positions", "note", text)
    return Finding("positions", "ok", said)


def _dtypes(target: TargetInfo, config: Mapping[str, Any]) -> Finding:
    own, other = (_dtype(each) for each in (config, language_config(target.hf_config)))
    same = own is None or other is None or own == other
    return Finding(DTYPE, "ok" if same else "note", f"the target's is {other or '?'}, the draft's is {own or '?'}")


def _dtype(config: Mapping[str, Any]) -> str | None:
    found = config.get("dtype") or config.get("torch_dtype")
    return None if found is None else str(found).removeprefix("torch.")


def _maps(target: TargetInfo, draft: DraftSource) -> Iterator[Finding]:
    named = {name.rpartition(".")[2]: name for name in draft.tensor_names}
    if "d2t" not in named:
        return
    try:
        marks = draft.integers(named["t2d"]) if "t2d" in named else None
        rows = draft.integers(named["d2t"])
    except ConfigError as error:
        yield Finding(MAP, "problem", str(error))
        return
    problem = map_problem(rows, marks, target.vocab_size)
    text = problem or f"{len(rows)} of {target.vocab_size} ids can be drafted"
    yield Finding(MAP, "problem" if problem else "ok", text)


def _tokenizers(target: TargetInfo, draft: DraftSource, vocabulary: str) -> Iterator[Finding]:
    """Compare the tokenizers beside both; most heads have none, and mean the target's ids."""
    try:
        sources = [ModelSource.of(name) for name in (target.model, draft.model) if name is not None]
        if len(sources) < 2 or not tokenizer_files(sources[1]):
            yield Finding("tokenizer", "ok", "the draft has none of its own: its ids are taken as the target's")
            return
        ours, theirs = (load_tokenizer(source) for source in sources)
    except SpecdecError as error:
        yield Finding("tokenizer", "note", f"cannot be compared: {error}")
        return
    if ours is None or theirs is None:
        yield Finding("tokenizer", "note", "the target has none, so they cannot be compared")
        return
    yield _same_ids(ours.get_vocab(), theirs.get_vocab(), vocabulary)
    differing = [f"{name} {getattr(theirs, name)}, the target's {getattr(ours, name)}" for name in SPECIAL]
    differing = [text for name, text in zip(SPECIAL, differing, strict=True) if _differ(ours, theirs, name)]
    state: State = "note" if differing and vocabulary != "other" else "ok"
    yield Finding("special tokens", state, "; ".join(differing) or "the same")


def _differ(ours: Any, theirs: Any, name: str) -> bool:
    return bool(getattr(ours, name) != getattr(theirs, name))


def _same_ids(ours: Mapping[str, int], theirs: Mapping[str, int], vocabulary: str) -> Finding:
    moved = sorted((token, ours[token], theirs[token]) for token in ours.keys() & theirs.keys())
    moved = [entry for entry in moved if entry[1] != entry[2]]
    lacking = len(theirs.keys() - ours.keys())
    if not moved and not lacking:
        return Finding("tokenizer", "ok", f"the draft's {len(theirs)} texts have the target's ids")
    example = f", {moved[0][0]!r} is {moved[0][2]} and in the target {moved[0][1]}" if moved else ""
    text = f"{len(moved)} texts have other ids in the draft{example}; {lacking} are not in the target"
    if vocabulary == "other":
        return Finding("tokenizer", "ok", f"{text}; the method translates")
    return Finding("tokenizer", "problem" if moved else "note", text)


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value


def overflow(resolved: ResolvedConfig, dtype: torch.dtype) -> Finding | None:
    """Return what a dtype does to a draft that was made in one that reaches further, None if it reaches no further.

    Weights beyond the largest number of `dtype`, in which the pair runs, are a problem; without any, what they make of
    the states may still be. Weights are read only then. Raises ConfigError for files that cannot be read.
    """
    draft, most = resolved.draft, torch.finfo(dtype).max
    if draft is None or resolved.traits.weights != "own":
        return None
    further = {name: stored for name, stored in draft.tensor_dtypes.items() if _reach(stored) > most}
    if not further:
        return None
    sizes = {name: float(each.abs().max()) for name, each in read_tensors(draft, further.__contains__).items()}
    largest = max(sizes, key=sizes.__getitem__)
    own, step = str(dtype).removeprefix("torch."), "run the target in bfloat16 or float32 (--dtype)"
    if sizes[largest] > most:
        text = f"{largest} has numbers up to {sizes[largest]:.3g}, and {own}, in which it runs, ends at {most:.3g}"
        return Finding(DTYPE, "problem", f"{text}; {step}")
    made = ", ".join(sorted(set(further.values())))
    return Finding(
        DTYPE, "note", f"made in {made}, runs in {own}, which ends at {most:.3g}; {step} if little is accepted"
    )


def _reach(stored: str) -> float:
    """Return the largest number of a dtype by its name, 0 for what is no float of torch."""
    dtype = getattr(torch, stored, None) if stored else None
    return torch.finfo(dtype).max if isinstance(dtype, torch.dtype) and dtype.is_floating_point else 0.0

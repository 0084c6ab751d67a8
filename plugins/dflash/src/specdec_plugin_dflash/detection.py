"""Is a checkpoint a DFlash or DSpark head; evidence is config.json and tensors, never the path. No torch."""

from __future__ import annotations

from collections.abc import Mapping

from specdec_core.sources import Detection, DraftSource, TargetSwap
from specdec_nn.checkpoints import speculators as shared
from specdec_plugin_dflash import speculators
from specdec_plugin_dflash.layout import DFlashReader
from specdec_plugin_dflash.names import DFLASH, DSPARK, HIDDEN_NORM, LAYER, W1
from specdec_plugin_dflash.reading import SECTION


def detect(draft: DraftSource) -> Detection | None:
    """Return the claim on a checkpoint, None if it is neither."""
    config = draft.hf_config
    if speculators.is_speculators(config):
        kind = config[shared.TYPE]
        return Detection(method=speculators.METHODS[kind], strength="certain", evidence=(f"{shared.TYPE} {kind!r}",))
    if config.get(shared.TYPE) is not None:
        return None  # of a type that is somebody else's
    for name in draft.architectures:
        method = method_of_name(name)
        if method is not None:
            return Detection(
                method=method, strength="certain", evidence=(f"architectures {list(draft.architectures)}",)
            )
    if config.get("markov_rank") is not None:
        return Detection(method=DSPARK, strength="certain", evidence=(f"markov_rank {config['markov_rank']!r}",))
    names = DFlashReader.names_of(draft)
    method = method_of_tensors(names)
    if method is None:
        return None
    evidence = [f"tensor {names[W1 if method == DSPARK else HIDDEN_NORM]}"]
    evidence += [SECTION] if SECTION in config else []
    return Detection(method=method, strength="certain", evidence=tuple(evidence))


def method_of_name(architecture: str) -> str | None:
    """Return the method that an architecture's name means, None if neither."""
    if "DSpark" in architecture:
        return DSPARK
    is_flash = architecture.startswith("DFlash") or architecture.endswith("DFlash")
    return DFLASH if is_flash or architecture in speculators.OWN_NAMES else None


def method_of_tensors(names: Mapping[str, str]) -> str | None:
    """Return the method whose tensors these are: `hidden_norm` at the top is DFlash's, a Markov head DSpark's."""
    if f"layers.0.{LAYER[1]}" not in names or "mask_hidden" in names:
        return None
    if W1 in names:
        return DSPARK
    return DFLASH if HIDDEN_NORM in names else None


def swap(source: DraftSource) -> TargetSwap | None:
    """Return the pair that a speculators checkpoint stands for, None for others."""
    return shared.swap(source, speculators.METHODS)

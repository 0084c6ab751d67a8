"""Is a checkpoint a DFlash or DSpark head; evidence is config.json and tensors, never the path. No torch."""

from __future__ import annotations

from specdec_core.errors import ConfigError
from specdec_core.sources import Detection, DraftSource, TargetSwap
from specdec_plugin_dflash import speculators
from specdec_plugin_dflash.names import DFLASH, DSPARK, HIDDEN_NORM, LAYER, W1, spelled
from specdec_plugin_dflash.reading import SECTION


def detect(draft: DraftSource) -> Detection | None:
    """Return the claim on a checkpoint, None if it is neither."""
    config = draft.hf_config
    if speculators.is_speculators(config):
        kind = config[speculators.TYPE]
        return Detection(
            method=speculators.METHODS[kind], strength="certain", evidence=(f"{speculators.TYPE} {kind!r}",)
        )
    if config.get(speculators.TYPE) is not None:
        return None  # of a type that is somebody else's
    for name in draft.architectures:
        method = method_of_name(name)
        if method is not None:
            return Detection(
                method=method, strength="certain", evidence=(f"architectures {list(draft.architectures)}",)
            )
    if config.get("markov_rank") is not None:
        return Detection(method=DSPARK, strength="certain", evidence=(f"markov_rank {config['markov_rank']!r}",))
    try:
        names = spelled(draft.tensor_names)
    except (ValueError, ConfigError):
        return None  # a checkpoint that cannot be read is nobody's; what is wrong is said by who is asked for it
    method = method_of_tensors(names)
    if method is None:
        return None
    evidence = [f"tensor {names[W1 if method == DSPARK else HIDDEN_NORM]}"]
    evidence += [SECTION] if SECTION in config else []
    return Detection(method=method, strength="certain", evidence=tuple(evidence))


def method_of_name(architecture: str) -> str | None:
    """Return the method that an architecture's name says, None if it says neither."""
    if "DSpark" in architecture:
        return DSPARK
    is_flash = architecture.startswith("DFlash") or architecture.endswith("DFlash")
    return DFLASH if is_flash or architecture in speculators.OWN_NAMES else None


def method_of_tensors(names: dict[str, str]) -> str | None:
    """Return the method whose tensors these are: `hidden_norm` at the top is DFlash's, a Markov head DSpark's."""
    if f"layers.0.{LAYER[1]}" not in names or "mask_hidden" in names:
        return None
    if W1 in names:
        return DSPARK
    return DFLASH if HIDDEN_NORM in names else None


def swap(source: DraftSource) -> TargetSwap | None:
    """Return the pair that a speculators checkpoint stands for, None for others."""
    config = source.hf_config
    if not speculators.is_speculators(config):
        return None
    verifier, kind = speculators.verifier_of(config), config[speculators.TYPE]
    if verifier is None:
        message = f"{source.model!r} does not name its target ({speculators.SECTION}.verifier.name_or_path)"
        raise ConfigError(message)
    keys: dict[str, object] = {"method": speculators.METHODS[kind], "model": source.model}
    return TargetSwap(model=verifier, speculative_config=keys, reason=f"{speculators.TYPE} {kind!r}")

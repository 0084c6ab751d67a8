"""Is a checkpoint an EAGLE head, and which; evidence is config.json and tensors, never the path. No torch."""

from __future__ import annotations

from specdec_core.errors import ConfigError
from specdec_core.sources import Detection, DraftSource, TargetSwap
from specdec_plugin_eagle import speculators
from specdec_plugin_eagle.layout import HIDDEN_NORM, generation_of
from specdec_plugin_eagle.names import spelled
from specdec_plugin_eagle.required import EAGLE_3


def detect(draft: DraftSource) -> Detection | None:
    """Return the claim on a checkpoint, None if it is no EAGLE head."""
    config = draft.hf_config
    if speculators.is_speculators(config):
        kind = config[speculators.TYPE]
        return Detection(method=EAGLE_3, strength="certain", evidence=(f"{speculators.TYPE} {kind!r}",))
    said = tuple(name for name in draft.architectures if name.lower().startswith("eagle3"))
    if said:
        return Detection(method=EAGLE_3, strength="certain", evidence=(f"architectures {list(said)}",))
    try:
        names = spelled(draft.tensor_shapes)
        shapes = {ours: draft.tensor_shapes[name] for ours, name in names.items()}
    except (ValueError, ConfigError):
        return None  # a checkpoint that cannot be read is nobody's; what is wrong is said by who is asked for it
    generation = generation_of(shapes)
    if generation is None:
        return None
    if generation == EAGLE_3:
        return Detection(method=EAGLE_3, strength="certain", evidence=(f"tensor {names[HIDDEN_NORM]}",))
    # Other heads may have an fc of this shape as well, so this is not certain.
    evidence = f"tensor {names['fc.weight']} {list(shapes['fc.weight'])} over blocks without hidden_norm"
    return Detection(method=generation, strength="likely", evidence=(evidence,))


def swap(source: DraftSource) -> TargetSwap | None:
    """Return the pair that a speculators checkpoint stands for, None for others."""
    config = source.hf_config
    if not speculators.is_speculators(config):
        return None
    verifier = speculators.verifier_of(config)
    if verifier is None:
        message = f"{source.model!r} does not name its target ({speculators.SECTION}.verifier.name_or_path)"
        raise ConfigError(message)
    keys: dict[str, object] = {"method": EAGLE_3, "model": source.model}
    return TargetSwap(
        model=verifier, speculative_config=keys, reason=f"{speculators.TYPE} {config[speculators.TYPE]!r}"
    )

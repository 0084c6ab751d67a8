"""Is a checkpoint an EAGLE head, and which; evidence is config.json and tensors, never the path. No torch."""

from __future__ import annotations

from specdec_core.sources import Detection, DraftSource, TargetSwap
from specdec_nn.checkpoints import speculators as shared
from specdec_plugin_eagle import speculators
from specdec_plugin_eagle.layout import HIDDEN_NORM, EagleReader, generation_of
from specdec_plugin_eagle.required import EAGLE_3


def detect(draft: DraftSource) -> Detection | None:
    """Return the claim on a checkpoint, None if it is no EAGLE head."""
    config = draft.hf_config
    if speculators.is_speculators(config):
        kind = config[shared.TYPE]
        return Detection(method=speculators.METHODS[kind], strength="certain", evidence=(f"{shared.TYPE} {kind!r}",))
    said = tuple(name for name in draft.architectures if name.lower().startswith("eagle3"))
    if said:
        return Detection(method=EAGLE_3, strength="certain", evidence=(f"architectures {list(said)}",))
    names, shapes = EagleReader.shapes_of(draft)
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
    return shared.swap(source, speculators.METHODS)

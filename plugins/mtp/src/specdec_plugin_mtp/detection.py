"""Does a checkpoint carry MTP modules; evidence is config.json together with names of tensors, never the path."""

from __future__ import annotations

from specdec_core.errors import ConfigError
from specdec_core.sources import Detection, DraftSource, TargetSwap
from specdec_nn.checkpoints import speculators as shared
from specdec_plugin_mtp import speculators
from specdec_plugin_mtp.family import model_type
from specdec_plugin_mtp.reading import Reading

METHOD = "mtp"


def detect(draft: DraftSource) -> Detection | None:
    """Return the claim on a checkpoint, None if it has no modules or is of a family whose tensors are not known.

    A model without the modules is a plain draft model, whatever its config.json has. One that has them may be meant as
    a plain draft model as well, so the claim is no more than likely.
    """
    reading = Reading.of(draft)
    family = reading.family
    if family is None:
        return None
    if speculators.is_speculators(draft.original.hf_config):
        kind = speculators.described(draft.original.hf_config)
    else:
        kind = f"model_type {model_type(reading.config)!r}"
    if family.whole:
        return Detection(method=METHOD, strength="certain", evidence=(kind,))
    try:
        if not family.modules or reading.n_predict is None or reading.lacks(0):
            return None
    except ConfigError:
        return None  # a checkpoint that cannot be read is nobody's; what is wrong is said by who is asked for it
    number, key = reading.said
    tensors = f"tensors of {family.modules[0].format(i=0, layer=reading.num_layers)}"
    return Detection(method=METHOD, strength="likely", evidence=(kind, f"{key} {number}", tensors))


def swap(source: DraftSource) -> TargetSwap | None:
    """Return the pair that a speculators file stands for, None for other checkpoints."""
    return shared.swap(source, {speculators.KIND: METHOD})

"""Files of speculators' type `mtp`, read as the configuration of a model with one MTP module; no torch.

Source: FastMTP, arXiv:2509.18362, section 3: one layer, trained to run on its own output for all drafts of a step. What
such a file holds is in docs/mtp.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from specdec_core.errors import ConfigError
from specdec_nn.checkpoints.speculators import BASE, TYPE, Config, base_config, is_of_type
from specdec_plugin_mtp.family import Family

KIND: Final = "mtp"
MODULES: Final = "num_nextn_predict_layers"
ARCHITECTURE: Final = "MTPDraftModel"
DEFAULT_LAYER: Final = "qwen2"
BUILT: Final = ("qwen2", "qwen3")  # types of layers
LAYER: Final = "mtp_layers.0"
MAPS: Final = ("d2t", "t2d")  # of a reduced vocabulary
# The head that training compared with; files that were converted and not trained have it filled with NaN.
TRAINING_ONLY: Final = ("verifier_lm_head.weight",)


def is_speculators(config: Config) -> bool:
    """Return whether a config.json is of this type."""
    return is_of_type(config, (KIND,))


def described(config: Config) -> str:
    """Return the key that makes a config.json one of this type, with its value."""
    return f"{TYPE} {config.get(TYPE)!r}"


def flattened(config: Config) -> Config:
    """Return the keys of the layer in the place of those around them; what is around them is kept.

    A layer without a type is one of Qwen2. One that is no object leaves its keys out; `problem` reports it.
    """
    base = config.get(BASE)
    inner = base if isinstance(base, Mapping) else {}
    return {**config, **inner, "model_type": inner.get("model_type") or DEFAULT_LAYER, "architectures": [ARCHITECTURE]}


def has_layer(kind: str) -> Callable[[Config], bool]:
    """Return whether a flattened config is one with a layer of that type."""
    return lambda config: is_speculators(config) and config.get("model_type") == kind


def problem(config: Config, names: Iterable[str]) -> str | None:
    """Return what rules a file of this type out, None if nothing does; `config` is its config.json as it is."""
    try:
        base = base_config(config)
    except ConfigError as error:
        return str(error)
    modules = config.get(MODULES, 1)
    if modules != 1:
        return f"{MODULES} is {modules!r}, and files of this type have one layer"
    reduced, whole = config.get("draft_vocab_size"), base.get("vocab_size")
    if reduced is not None and reduced != whole:
        return f"its vocabulary is reduced (draft_vocab_size {reduced!r} of {whole!r}), which this type cannot have"
    if strange := sorted(name for name in names if name in MAPS or _of_another_layer(name)):
        return f"it has {strange[0]}, and files of this type have one layer, {LAYER}, and the target's vocabulary"
    return None


def _of_another_layer(name: str) -> bool:
    rest = name.partition("mtp_layers.")[2]
    return bool(rest) and rest.partition(".")[0] != "0"


# The weights of the one layer in a file of speculators' type mtp; layers of Qwen3 have two more.
WEIGHTS: Final = tuple(
    f"{LAYER}.{name}.weight"
    for name in (
        *("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm"),
        *("input_layernorm", "post_attention_layernorm"),
        *(f"self_attn.{letter}_proj" for letter in "qkvo"),
        *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
    )
)
NORMS_OF_QWEN3: Final = tuple(f"{LAYER}.self_attn.{letter}_norm.weight" for letter in "qk")


def _family(title: str, layer: str, more: tuple[str, ...] = ()) -> Family:
    """Return the family of files of speculators' type mtp with a layer of a type."""
    return Family(
        title=title,
        architectures=(ARCHITECTURE,),
        where=has_layer(layer),
        counts=(MODULES,),
        default=1,
        vllm_drafts=False,
        modules=(*WEIGHTS, *more),
        whole=True,
        recursive=True,
        # Training takes the target's states as they leave its last layer.
        reads="residual",
    )


QWEN2: Final = _family("speculators' type mtp, a layer of Qwen2", "qwen2")
QWEN3: Final = _family("speculators' type mtp, a layer of Qwen3", "qwen3", NORMS_OF_QWEN3)
OTHER: Final = Family(
    title="speculators' type mtp, other layers",
    architectures=(ARCHITECTURE,),
    where=is_speculators,
    counts=(MODULES,),
    default=1,
    why_not=f"only layers of {' and '.join(BUILT)} are built in files of this type",
    vllm_drafts=False,
    whole=True,
    recursive=True,
)

FAMILIES: Final = (QWEN2, QWEN3, OTHER)

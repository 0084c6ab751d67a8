"""What DFlash2, LiLiCorr and Domino heads have on top of a DFlash block: sizes, tensors, what is wrong; no torch.

Convolutions exchange values between the rows of a block; a chooser goes through its places from left to right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from specdec_nn.checkpoints.decoder import BECAUSE
from specdec_nn.checkpoints.reader import Shape, Tensors
from specdec_plugin_dflash import reading
from specdec_plugin_dflash.names import HEAD
from specdec_plugin_dflash.reading import SECTION

SELECTOR: Final = "DFlash2"
LATTICE: Final = "LiLiCorr"
DOMINO: Final = "Domino"
CONVOLUTIONS: Final = ("attention_conv", "mlp_conv")
CONV_KEYS: Final = ("conv_kernel_size", "conv_group_size")
SELECTOR_KEYS: Final = ("selector_rank", "selector_top_k")
LATTICE_PREFIX: Final = "lilicorr_"
LATTICE_COUNTS: Final = ("candidate_topk", "num_heads", "num_layers", "factor_dim")
LATTICE_NUMBERS: Final = ("mlp_ratio", "vector_eps", "logit_scale")
MOST_CANDIDATES: Final = 16  # of a lattice
FACTORS: Final = ("input_embedding_scale", "output_multiplier")  # of embeddings and of logits
FEATURES: Final = 5  # numbers that a lattice has of each candidate
# What the target may do to its logits, which a head that reads the LM head alone was not trained with.
ON_LOGITS: Final = ("final_logit_softcapping", "logit_scale", "logits_scaling")


@dataclass(frozen=True, kw_only=True)
class Additions:
    """What a head has on top of its block.

    kind        SELECTOR, LATTICE or DOMINO, None for a plain head
    sizes       its numbers by the names of config.json, without "lilicorr_"
    shapes      shape of each of its tensors; a first length of None is one for each id
    optional    tensors that it need not have
    block_size  the rows that it must not have more of, None for any number
    multiplier  factor of the logits, and `cap` their soft cap, None without one
    scale       factor of the embeddings
    shifted     the first place is the row of the newest id, and the last row of a block is none
    """

    kind: str | None = None
    sizes: Mapping[str, float] = field(default_factory=dict)
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    optional: frozenset[str] = frozenset()
    block_size: int | None = None
    multiplier: float = 1.0
    cap: float | None = None
    scale: float = 1.0
    shifted: bool = False

    def count(self, name: str) -> int:
        """Return a size that is a whole number."""
        return int(self.sizes[name])

    @property
    def whole(self) -> bool:
        """Whether each draft depends on all places of a block."""
        return self.kind == LATTICE

    @property
    def candidates(self) -> int:
        """How many ids of a place may be drafted, 0 for all."""
        return int(self.sizes.get("selector_top_k", self.sizes.get("candidate_topk", 0)))

    @property
    def taps(self) -> int:
        """How many rows a convolution reads, 0 without convolutions."""
        return int(self.sizes.get(CONV_KEYS[0], 0))


NONE: Final = Additions()


def kind_of(config: Mapping[str, Any], architecture: str, shapes: Mapping[str, object]) -> str | None:
    """Return what a head has on top of its block, by config.json or tensors, None for nothing."""
    if reading.setting(config, "projector_type") == "domino" or _any(shapes, ("prefix_gru.", "embed_proj.")):
        return DOMINO
    section = config.get(SECTION)
    keys = section if isinstance(section, Mapping) else {}
    off = keys.get(f"{LATTICE_PREFIX}enabled") is False
    if architecture.startswith(LATTICE) or _any(shapes, ("lilicorr.",)) or (_any(keys, (LATTICE_PREFIX,)) and not off):
        return LATTICE
    said = any(reading.setting(config, key) for key in (*CONV_KEYS, *SELECTOR_KEYS))
    found = any("_conv." in name or name.startswith("candidate_selector.") for name in shapes)
    return SELECTOR if said or found or architecture.startswith(SELECTOR) else None


def _any(names: Mapping[str, object], beginnings: tuple[str, ...]) -> bool:
    return any(name.startswith(beginnings) for name in names)


class AdditionsReader:
    """Reads the additions of one head; what is wrong becomes a problem of `tensors`."""

    def __init__(self, tensors: Tensors, config: Mapping[str, Any], architecture: str, num_layers: int) -> None:
        """Take names and shapes of the head, its config.json and the number of layers of its block."""
        self._tensors, self._config, self._num_layers = tensors, config, num_layers
        self._kind = kind_of(config, architecture, tensors.shapes)
        section = config.get(SECTION)
        self._section: Mapping[str, Any] = section if isinstance(section, Mapping) else {}

    def read(self, width: int, target: Mapping[str, Any]) -> Additions:
        """Return the additions of a head of that width over a target with that config.json."""
        if self._kind is None:
            projector = reading.setting(self._config, "projector_type")
            if projector is not None:
                self._tensors.wrong(f"its config.json has projector_type {projector!r}, and known is 'domino'")
            self.cap()
            return NONE
        known = len(self._tensors.problems)
        made = {SELECTOR: self._selector, LATTICE: self._lattice, DOMINO: self._domino}[self._kind](width)
        cap = self._logits(target)
        scale, multiplier = (self._factor(name) for name in FACTORS)
        if len(self._tensors.problems) > known:
            return made  # what it would consist of is known, if not its shapes
        self._tensors.require(name for name in made.shapes if name not in made.optional)
        self._tensors.expect(made.shapes, BECAUSE)
        if self._kind != SELECTOR:
            return made
        return replace(made, scale=scale, multiplier=multiplier, cap=cap)

    def _factor(self, key: str) -> float:
        """Return a factor of embeddings or logits, 1 where config.json has none."""
        return 1.0 if reading.setting(self._config, key) is None else self._number(key)

    def _count(self, key: str, *, least: int = 1) -> int:
        value = reading.setting(self._config, key)
        if type(value) is int and value >= least:
            return value
        message = f"its config.json has {SECTION}.{key} {value!r}, and {self._kind} heads need a whole number there"
        self._tensors.wrong(f"{message} of at least {least}", "correct its config.json")
        return least

    def _number(self, key: str) -> float:
        value = reading.setting(self._config, key)
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            return float(value)
        message = f"its config.json has {SECTION}.{key} {value!r}, and {self._kind} heads need a number above 0 there"
        self._tensors.wrong(message, "correct its config.json")
        return 1.0

    def _convolutions(self, width: int, sizes: dict[str, float]) -> dict[str, Shape]:
        taps, group = (self._count(key) for key in CONV_KEYS)
        sizes |= {CONV_KEYS[0]: taps, CONV_KEYS[1]: group}
        if width % group:
            self._tensors.wrong(f"its conv_group_size {group} does not divide its width {width}")
        shapes: dict[str, Shape] = {}
        for name in (f"layers.{i}.{conv}." for i in range(self._num_layers) for conv in CONVOLUTIONS):
            shapes[f"{name}base_kernel"] = (2, taps, width)
            shapes[f"{name}kernel_projection.weight"] = (2 * taps * (width // group), width)
        return shapes

    def _selector(self, width: int) -> Additions:
        rank, top_k = (self._count(key) for key in SELECTOR_KEYS)
        sizes: dict[str, float] = {"selector_rank": rank, "selector_top_k": top_k}
        shapes = self._convolutions(width, sizes)
        shapes |= {f"candidate_selector.{name}_codebook": (None, rank) for name in ("predecessor", "successor")}
        shapes["candidate_selector.hidden_projection.weight"] = (rank, width)
        return Additions(kind=SELECTOR, sizes=sizes, shapes=shapes)

    def _domino(self, width: int) -> Additions:
        hidden, inner = self._count("gru_hidden_dim"), self._count("emb_dim")
        free = reading.setting(self._config, "pure_draft_prefix_len", 1)
        if free != 1:
            self._tensors.wrong(f"its pure_draft_prefix_len is {free!r}, and one free place is what is built here")
        shapes: dict[str, Shape] = {
            "prefix_gru.weight_ih_l0": (3 * hidden, width),
            "prefix_gru.weight_hh_l0": (3 * hidden, hidden),
            "embed_proj.0.weight": (inner, width + hidden),
            "embed_proj.2.weight": (None, inner),
        }
        shifted = bool(reading.setting(self._config, "shift_label", False))
        return Additions(kind=DOMINO, sizes={"gru_hidden_dim": hidden}, shapes=shapes, shifted=shifted)

    def _lattice(self, width: int) -> Additions:
        if self._section.get(f"{LATTICE_PREFIX}enabled") is False:
            self._tensors.wrong("its config.json has lilicorr_enabled false, and it has the tensors of a lattice")
        sizes: dict[str, float] = {name: self._count(LATTICE_PREFIX + name) for name in LATTICE_COUNTS}
        sizes |= {name: self._number(LATTICE_PREFIX + name) for name in LATTICE_NUMBERS}
        key = f"{LATTICE_PREFIX}hidden_size"
        own = 0 if reading.setting(self._config, key) is None else self._count(key, least=0)
        inner, block = own or width, reading.block_size(self._config)
        k, heads = int(sizes["candidate_topk"]), int(sizes["num_heads"])
        if k > MOST_CANDIDATES or k & (k - 1):
            self._tensors.wrong(f"its lilicorr_candidate_topk is {k}, and it is a power of two up to {MOST_CANDIDATES}")
        if inner % heads:
            self._tensors.wrong(f"its lilicorr_num_heads {heads} do not divide the lattice's width {inner}")
        if block is None or block < 2:
            self._tensors.wrong(f"its config.json has block_size {block}, and a lattice needs at least 2 rows")
            block = 2
        shapes = _lattice_shapes(width, inner, block, sizes)
        has_convolutions = reading.setting(self._config, CONV_KEYS[0], 0) or any(
            "_conv." in name for name in self._tensors.shapes
        )
        if has_convolutions:
            shapes |= self._convolutions(width, sizes)
        optional = {"lilicorr.token_proj.weight", "lilicorr.token_proj.bias"} if inner == width else frozenset[str]()
        return Additions(kind=LATTICE, sizes=sizes, shapes=shapes, optional=frozenset(optional), block_size=block)

    def cap(self) -> float | None:
        """Return the soft cap of the logits; it and the factors are wrong in heads in which nobody applies them."""
        cap = self._section.get("final_logit_softcapping") or None
        if cap is not None and not (isinstance(cap, int | float) and cap > 0):
            self._tensors.wrong(f"its {SECTION}.final_logit_softcapping is {cap!r}, and it is a number above 0")
            return None
        named = [key for key in FACTORS if reading.setting(self._config, key, 1.0) != 1.0]
        if self._kind != SELECTOR and (named or cap is not None):
            what = (*named, *(("final_logit_softcapping",) if cap is not None else ()))
            self._tensors.wrong(f"its config.json has {what[0]}, which is applied in DFlash2 heads alone")
        return None if cap is None else float(cap)

    def _logits(self, target: Mapping[str, Any]) -> float | None:
        """Check what happens to logits, and return the soft cap that is left to apply."""
        cap = self.cap()
        done = {key: target[key] for key in ON_LOGITS if target.get(key) not in (None, 1, 1.0)}
        if HEAD in self._tensors or not done:
            return cap
        plain = reading.setting(self._config, FACTORS[1], 1.0) == 1.0
        if self._kind == SELECTOR and done == {ON_LOGITS[0]: cap} and plain:
            return None  # the target's own
        self._tensors.wrong(
            f"it has no {HEAD} and reads the target's logits as they are, and this target changes them by {done}",
            f"give a head with its own {HEAD}",
        )
        return None


def _lattice_shapes(width: int, inner: int, block: int, sizes: Mapping[str, float]) -> dict[str, Shape]:
    k, heads, factor = (int(sizes[name]) for name in ("candidate_topk", "num_heads", "factor_dim"))
    middle = int(inner * sizes["mlp_ratio"])
    shapes: dict[str, Shape] = {
        "feature_norm.weight": (FEATURES,),
        "feature_norm.bias": (FEATURES,),
        "slot_embedding": (1, 1, block - 1, 1, inner),
        "rank_embedding": (1, 1, 1, k, inner),
        "relative_slot_bias": (heads, 2 * block - 1),
        "same_slot_bias": (heads,),
        "output_norm.weight": (inner,),
        "anchor_norm.weight": (inner,),
    }
    linears = {name: (inner, width) for name in ("token_proj", "pass_hidden_proj", "context_proj")}
    linears |= {"feature_mlp.up_proj": (inner, FEATURES), "feature_mlp.down_proj": (inner, inner)}
    linears |= {"factor_input_proj": (inner, 3 * inner)}
    linears |= {name: (factor, inner) for name in ("out_head", "in_head", "anchor_out_head")}
    for i in range(int(sizes["num_layers"])):
        p = f"layers.{i}."
        shapes |= {f"{p}attn_norm.weight": (inner,), f"{p}mlp_norm.weight": (inner,)}
        shapes |= {f"{p}attn.in_proj_weight": (3 * inner, inner), f"{p}attn.in_proj_bias": (3 * inner,)}
        linears |= {f"{p}attn.out_proj": (inner, inner)}
        linears |= {f"{p}mlp.up_proj": (middle, inner), f"{p}mlp.down_proj": (inner, middle)}
    for name, size in linears.items():
        shapes |= {f"{name}.weight": size, f"{name}.bias": size[:1]}
    return {f"lilicorr.{name}": shape for name, shape in shapes.items()}

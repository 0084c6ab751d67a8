"""From a checkpoint to a drafter: makes the modules that will run, and what runs them; no drafting here."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from specdec_core.config.rope import plain_rope
from specdec_core.context import MethodContext, ProposerBuild
from specdec_core.errors import ConfigError
from specdec_core.protocols import Proposer
from specdec_core.registry.kernels import Kernels
from specdec_core.sources import TargetHandle
from specdec_nn.cache.draft_cache import DraftCache
from specdec_nn.checkpoints.vocabulary import largest_difference
from specdec_nn.checkpoints.weights import read_tensors
from specdec_nn.drafters.draft_sampler import DraftSampler
from specdec_nn.drafters.hidden_state import ChainPlan, HiddenStateDrafter
from specdec_nn.drafters.module_chain import ModuleDrafter
from specdec_nn.layers.block import Linear, RMSNorm
from specdec_nn.layers.pairs import halves_to_neighbours, reordered
from specdec_plugin_mtp import speculators, weights
from specdec_plugin_mtp.assistant import building as assistant
from specdec_plugin_mtp.heads.blocks import FlatBlock
from specdec_plugin_mtp.heads.module import MtpModule
from specdec_plugin_mtp.heads.wiring import WIRINGS
from specdec_plugin_mtp.options import MtpOptions
from specdec_plugin_mtp.reading import Reading

HEAD = "lm_head.weight"
KEPT_IN_FLOAT32 = ("e_score_correction_bias",)  # what experts are chosen by

logger = logging.getLogger("specdec_plugin_mtp")


def make(ctx: MethodContext[MtpOptions], build: ProposerBuild) -> Proposer:
    """Build the proposer. Raises ConfigError for tensors that are missing, of other shapes, or not to be read."""
    options, draft, target, kernels = ctx.options, ctx.checkpoint, build.target, build.kernels
    reading = Reading.of(draft)
    if reading.family is not None and reading.family.reads == "keys":
        return assistant.make(ctx, build)
    k, modules = build.num_speculative_tokens, reading.n_predict or 1
    running = min(modules, k) if options.recurrence(modules) == "modules" else 1
    parts = Parts(reading, target, kernels)
    heads = [parts.module(i) for i in range(running)]
    weights.warn_of_unexpected(reading.source, parts.unused | _beside(reading))
    sampler = DraftSampler.of(build)
    round_rows = k if running == 1 else ModuleDrafter.round_rows(running, k)
    caches = [DraftCache.of(target, round_rows) for _ in heads]
    if running == 1:
        return HiddenStateDrafter(heads[0], caches[0], ChainPlan(sampler))
    return ModuleDrafter(heads, caches, sampler)


class Parts:
    """The parts of a checkpoint's modules, on the target's device and in its dtype.

    unused  names of tensors of the modules made so far that nothing had a use for
    """

    def __init__(self, reading: Reading, target: TargetHandle, kernels: Kernels) -> None:
        """Find the family's classes. Raises ConfigError if the installed transformers lacks them."""
        if (
            reading.family is None or reading.family not in WIRINGS
        ):  # resolve has checked it; the file has changed since
            message = f"{reading.source.model!r} is no longer what it was when the configuration was checked"
            raise ConfigError(message)
        self._reading, self._source, self._wiring = reading, reading.source, WIRINGS[reading.family]
        self._target, self._kernels = target, kernels
        self._device, self._dtype = target.device, target.dtype
        self._library, config_class = self._import()
        keys = {key: value for key, value in plain_rope(reading.text).items() if key != "model_type"}
        self._config = config_class.from_dict(keys)
        # As transformers has it for a model: all rows of an expert at once, and on a GPU without waiting for it.
        self._config._experts_implementation = "eager" if self._device.type == "cpu" else "grouped_mm"
        self._eps = float(self._config.rms_norm_eps)
        self.unused: set[str] = set()

    def _import(self) -> tuple[ModuleType, Any]:
        """Return the library of the family's classes and its config class; other families are not imported."""
        import transformers

        name = self._wiring.library
        place = f"transformers.models.{name}"
        try:
            library = importlib.import_module(f"{place}.modeling_{name}")
            return library, getattr(importlib.import_module(f"{place}.configuration_{name}"), self._wiring.config)
        except (ImportError, AttributeError) as error:
            title = self._reading.family.title if self._reading.family else ""
            message = (
                f"the MTP modules of {title} are made of {place}, which transformers {transformers.__version__} lacks "
                f"({type(error).__name__}: {error}); install one that has it"
            )
            raise ConfigError(message) from error

    def module(self, i: int) -> MtpModule:
        """Return module i with its weights."""
        wiring, layers = self._wiring, self._reading.num_layers or 0
        at = weights.prefix_of(self._source, wiring.projection.format(i=i, layer=layers + i))

        def name(template: str) -> str:
            return at + template.format(i=i, layer=layers + i)

        around = [wiring.embedding_norm, wiring.state_norm, wiring.projection]
        names = [name(part) for part in (*around, *([wiring.final_norm] if wiring.final_norm else []))]
        embedding, head = (None if table is None else name(table) for table in (wiring.embedding, wiring.head))
        quantization = self._reading.config.get("quantization_config") or {}
        prefixes = [*(f"{each}." for each in names), name(wiring.prefix)]
        apart = [table for table in (embedding, head) if table is not None]
        read = weights.read_module(self._source, prefixes, apart, quantization)
        self._compare(embedding, head)
        tensors, width = weights.ModuleTensors(self._source, read), self._target.info.hidden_size
        shapes = [(width,), (width,), (width, 2 * width), (width,)]
        taken = [tensors.take(f"{each}.weight", shape) for each, shape in zip(names, shapes, strict=False)]
        with torch.device("meta"):  # without memory of its own
            layer = wiring.block(self._library, self._config, i)
        state = tensors.state(layer.state_dict(), name(wiring.prefix))
        tensors.check()
        outer = [tensor.to(self._device, self._dtype) for tensor in taken]
        block = self._block(layer, state)
        self.unused |= tensors.left.keys() | self._beside_modules(at, prefixes)
        norms = [RMSNorm(outer[n], self._eps, plus_one=wiring.plus_one) for n in (0, 1, 3) if n < len(outer)]
        return MtpModule(
            wiring,
            self._target,
            embedding_norm=norms[0],
            state_norm=norms[1],
            projection=Linear(outer[2], None, self._kernels.get("linear", self._device)),
            block=block,
            final_norm=norms[2] if wiring.final_norm else None,
        )

    def _beside_modules(self, at: str, read: Sequence[str]) -> set[str]:
        """Return names of tensors among those of all modules that belong to none, and do not begin as what was read."""
        root = self._wiring.root
        if root is None:
            return set()
        known = (at + self._wiring.prefix.partition("{i}")[0], *read)
        return {n for n in self._source.tensor_names if n.startswith(at + root) and not n.startswith(known)}

    def _block(self, layer: nn.Module, state: dict[str, Tensor]) -> FlatBlock:
        """Give a layer the checkpoint's tensors."""
        if self._wiring.turns == "halves":
            head_dim = len(state["self_attn.q_proj.weight"]) // self._config.num_attention_heads
            state = reordered(state, halves_to_neighbours(head_dim))
        for name, tensor in state.items():
            dtype = torch.float32 if name.endswith(KEPT_IN_FLOAT32) else self._dtype
            state[name] = tensor.to(self._device, dtype)
        layer.load_state_dict(state, assign=True)
        rotary: nn.Module = getattr(self._library, self._wiring.rotary)(self._config).to(self._device)
        return FlatBlock(layer.eval().requires_grad_(False), rotary, self._kernels, self._device)

    def _compare(self, embedding: str | None, head: str | None) -> None:
        """Warn of a module's own table that differs from the target's, which is used in any case (docs/checkpoints.md).

        The target's head is seen as the checkpoint's lm_head, or as the embedding where there is one table for both.
        """
        shared = self._target.embedding_weight
        if embedding is not None and f"{embedding}.weight" in self._source.tensor_names:
            self._warn_if_different(f"{embedding}.weight", shared, "embedding")
        if head is None or f"{head}.weight" not in self._source.tensor_names:
            return
        own = read_tensors(self._source, HEAD.__eq__).get(HEAD)
        if own is not None or self._reading.config.get("tie_word_embeddings"):
            self._warn_if_different(f"{head}.weight", shared if own is None else own, "LM head")

    def _warn_if_different(self, name: str, shared: Tensor, what: str) -> None:
        own = read_tensors(self._source, name.__eq__)[name].to(shared.dtype)
        difference = largest_difference(own, shared)
        if difference:
            logger.warning(
                "%s of %r differs from the target's %s by up to %.3g, and is not used: MTP modules share the target's",
                name,
                self._source.model,
                what,
                difference,
            )


def _beside(reading: Reading) -> set[str]:
    """Return names of tensors outside the modules in a checkpoint that is nothing but them."""
    if reading.family is None or not reading.family.whole:
        return set()
    known = (*speculators.TRAINING_ONLY, "embed_tokens.weight")
    return {n for n in reading.source.tensor_names if f"{speculators.LAYER}." not in n and not n.endswith(known)}

"""A model that is cut behind a layer: the same modules, the same states, and nothing changed in the whole one."""

from __future__ import annotations

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaModel

from specdec_core.errors import TargetError
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.kernels import Kernels
from specdec_core.registry.loader import Registry
from specdec_nn.cache.draft_cache import DraftCache
from specdec_nn.fused.trial import fuse
from specdec_nn.hf.first_layers import first_layers
from specdec_nn.hf.model import FlatModel
from specdec_nn.hf.probe import probe
from specdec_testing.targets import tiny_target


def kernels() -> Kernels:
    return Registry(Catalog.discover(), strict=True).kernels


def whole(family: str, layers: int | None = None, **more) -> FlatModel:
    model = tiny_target(family, **({} if layers is None else {"num_hidden_layers": layers}), **more)
    flat = FlatModel(model, model.config.num_hidden_layers, 128, kernels())
    probe(flat)
    return flat


FAMILIES = ["llama", "gpt2", "gemma3", "gemma2", "gpt_oss", "deepseek_v3", "qwen3", "opt"]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("fused", [False, True])
def test_logits_are_those_of_the_shorter_stock_model_over_keys_and_values_of_the_whole_one(family, fused):
    flat = whole(family)
    if fused and fuse(flat) is not None:
        pytest.skip("the family has no fused pass")
    part = first_layers(flat, 1, kernels())
    assert (part.fused is not None) == fused
    arena = flat.new_arena(128)
    cache, ids, at = DraftCache(arena), torch.arange(20) * 5 % 128, torch.arange(20)
    cache.open("a")
    flat.run(ids[:17], at[:17], cache.append(["a"], [17], [17]), arena, None)
    logits = part.run(ids[17:], at[17:], cache.append(["a"], [3]), arena, torch.arange(3))
    with torch.inference_mode(), part.binding.eager():
        expected = part.model(input_ids=ids[None], use_cache=False).logits[0, 17:]
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


def test_everything_is_shared_and_the_whole_model_is_as_it_was():
    flat = whole("llama", 4)
    model = flat.model
    config, names, layers = model.config.to_dict(), list(model.state_dict()), list(model.model.layers)
    flat.tap((2,))
    part = first_layers(flat, 3, kernels())
    assert flat.taps == (2,)
    assert model.config.to_dict() == config and list(model.state_dict()) == names
    assert list(model.model.layers) == layers
    assert part.model.config.num_hidden_layers == 3 and len(part.decoder_layers()) == 3
    own = {id(parameter) for parameter in model.parameters()}
    assert {id(parameter) for parameter in part.model.parameters()} < own
    hook = model.model.register_forward_hook(lambda *_: None)
    assert not part.decoder._forward_hooks
    hook.remove()


@pytest.mark.parametrize("count", [0, 4, 5])
def test_a_part_is_at_least_one_layer_and_not_all_of_them(count):
    with pytest.raises(TargetError, match=r"LlamaForCausalLM has 4 layers.*1\.\.3"):
        first_layers(whole("llama", 4), count, kernels())


class ScaledByDepth(LlamaModel):
    """A decoder whose embeddings have a factor that follows from its number of layers."""

    def forward(self, input_ids=None, inputs_embeds=None, **kwargs):
        embeds = self.embed_tokens(input_ids) * self.config.num_hidden_layers
        return super().forward(inputs_embeds=embeds, **kwargs)


def test_a_family_whose_first_layers_follow_from_its_depth_is_refused():
    flat = whole("llama", 4)
    assert first_layers(flat, 2, kernels()).num_layers == 2
    flat.model.model.__class__ = ScaledByDepth
    probe(flat)
    with pytest.raises(TargetError, match="cannot be run to layer 2 by itself: the states behind it differ"):
        first_layers(flat, 2, kernels())

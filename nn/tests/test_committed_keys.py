"""Queries over a model's keys: all committed rows or the last of them, never the newest id, and none written."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from specdec_core.errors import ContractError
from specdec_nn.hf import recomputed_layers
from specdec_testing.building import registry_of
from specdec_testing.fakes import FakeRequest, FakeTarget
from specdec_testing.targets import tiny_target

MODEL = tiny_target("gemma3")  # layers 0 and 2 slide, layer 1 does not


def stock_keys(ids, layer):
    """Return a layer's keys and values [Hkv, n, d] by transformers' own cache, whole where the layer slides as well."""
    from transformers import DynamicCache

    cache = DynamicCache()
    with torch.inference_mode():
        MODEL(torch.tensor([ids]), past_key_values=cache, use_cache=True)
    return cache.layers[layer].keys[0].double(), cache.layers[layer].values[0].double()


def expected(queries, ids, layer, scaling, window):
    keys, values = stock_keys(ids, layer)
    if window is not None:
        keys, values = keys[:, -window:], values[:, -window:]
    group = len(queries) // len(keys)
    keys, values = keys.repeat_interleave(group, 0), values.repeat_interleave(group, 0)
    scores = torch.einsum("hd,hnd->hn", queries.double(), keys) * scaling
    return torch.einsum("hn,hnd->hd", scores.softmax(-1), values)


@pytest.mark.parametrize("window", [None, 5, 40])
def test_a_query_sees_the_keys_of_all_ids_but_the_newest(window, monkeypatch):
    """Also of prompts that run in pieces, of requests of other lengths beside each other, and after a changed text."""
    monkeypatch.setattr(recomputed_layers, "CATCH_UP_ROWS", 8)
    keys = FakeTarget(MODEL).target_keys(registry_of().kernels)
    rng = np.random.default_rng(0)
    for lengths in ((30, 4, 9), (33, 4, 2)):
        requests = [FakeRequest(f"r{i}", rng.integers(3, 128, n)) for i, n in enumerate(lengths)]
        queries = torch.randn(3, 4, 8, generator=torch.Generator().manual_seed(1))
        rows = keys.of([request.view for request in requests])
        for layer in (0, 1):
            found = rows.attend(layer, queries, scaling=1.0 / math.sqrt(8), window=window)
            for i, request in enumerate(requests):
                right = expected(queries[i], request.tokens[:-1].tolist(), layer, 1.0 / math.sqrt(8), window)
                torch.testing.assert_close(found[i].double(), right, rtol=1e-4, atol=1e-4)
    for request in requests:
        keys.release(request.view)
    assert keys.memory_bytes() > 0
    keys.close()


def test_layers_and_queries_that_are_not_there_are_refused():
    keys = FakeTarget(MODEL).target_keys(registry_of().kernels)
    rows = keys.of([FakeRequest("a", [5, 6, 7]).view])
    with pytest.raises(ContractError, match="layer 3 of Gemma3ForCausalLM has no keys"):
        rows.attend(3, torch.zeros(1, 4, 8), scaling=1.0, window=None)
    for shape in ((2, 4, 8), (1, 4, 6), (1, 3, 8)):
        with pytest.raises(ContractError, match="do not fit layer 1 of the target, which has 2 heads of 8 keys"):
            rows.attend(1, torch.zeros(shape), scaling=1.0, window=None)

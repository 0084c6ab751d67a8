"""Moving weights changes where they lie, and nothing else."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from specdec_nn.hf.large_pages import LINE, to_large_pages
from specdec_testing.targets import tiny_target

pytestmark = pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="a system without large pages to ask for")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_moved_model_has_its_parameters_ties_and_values_and_can_be_saved(dtype: torch.dtype, tmp_path: Path) -> None:
    model: Any = tiny_target("llama", dtype=dtype, tie_word_embeddings=True)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    parameters, weight = list(model.parameters()), model.lm_head.weight
    assert to_large_pages(model) >= sum(p.numel() * p.element_size() for p in parameters)
    assert all(one is other for one, other in zip(model.parameters(), parameters, strict=True))
    assert model.lm_head.weight is weight is model.get_input_embeddings().weight
    assert all(p.data_ptr() % LINE == 0 for p in parameters)
    assert len({p.untyped_storage().data_ptr() for p in parameters}) == len(parameters)
    assert all(p.untyped_storage().nbytes() == p.numel() * p.element_size() for p in parameters)
    model.save_pretrained(tmp_path)
    saved = type(model).from_pretrained(tmp_path, dtype=dtype).state_dict()
    for name, value in before.items():
        assert torch.equal(model.state_dict()[name], value)
        assert torch.equal(saved[name], value)
    with torch.no_grad():
        parameters[0].mul_(2)
    assert torch.equal(parameters[1], before[next(n for n, p in model.named_parameters() if p is parameters[1])])


def test_views_of_one_tensor_and_parameters_of_other_kinds_stay_where_they_are() -> None:
    whole = torch.zeros(8, 4)
    views = nn.ParameterList([nn.Parameter(whole[:6]), nn.Parameter(whole[4:])])
    subclass = nn.Linear(4, 4)
    subclass.weight = nn.Parameter(torch.zeros(4, 4).as_subclass(type("Other", (torch.Tensor,), {})))
    for model in (views, subclass, nn.Linear(4, 4).to("meta"), nn.Identity()):
        places = [p.data_ptr() for p in model.parameters()]
        assert to_large_pages(model) == 0
        assert [p.data_ptr() for p in model.parameters()] == places

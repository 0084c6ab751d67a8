"""Attention by FlashInfer gives what the definition gives; it needs a GPU and the library."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("flashinfer", reason="FlashInfer is not installed")
if not torch.cuda.is_available():
    pytest.skip("FlashInfer needs a GPU", allow_module_level=True)


def _cases():
    spec = importlib.util.spec_from_file_location("attention_rows", Path(__file__).with_name("test_attention.py"))
    module = sys.modules["attention_rows"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ROWS = _cases()


@pytest.mark.parametrize(
    "name", ["decode", "prompts and decode", "padding", "softcap", "one kv head", "window", "sinks"]
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [64, 128])
def test_ragged_rows_give_what_the_definition_gives_in_float64(name, dtype, width):
    from specdec_nn.ops.attention.flashinfer import attention

    def on_gpu(q, k, v, k_pages, v_pages, step, sinks=None, **options):
        sinks = sinks if sinks is None else sinks.cuda()
        return attention(*(x.cuda() for x in (q, k, v, k_pages, v_pages)), step, sinks=sinks, **options).cpu()

    case = ROWS.Case(**ROWS.CASES[name] | {"dims": width, "width": width, "scaling": 0.1}, dtype=dtype)
    exact = ROWS.oracle(case)
    unit = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}[dtype]
    assert ((case.run(on_gpu)[0].double() - exact).abs() <= 2 * unit * exact.abs() + 4 * unit).all()

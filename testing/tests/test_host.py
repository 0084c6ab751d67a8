"""The page on hosting has a whole host: it keeps the contract of hosts, and runs methods that read ids and states."""

import re
import runpy
from pathlib import Path

import pytest
import torch

from specdec_testing.host import HostContract
from specdec_testing.targets import tiny_target

PAGE = Path(__file__).parents[2] / "docs" / "hosting.md"
MODEL = tiny_target("llama")


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    code = re.search(r"^```python\n(# toy_host\.py\n.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)[1]
    assert len(code.splitlines()) <= 80, "a host in one page"
    file = tmp_path_factory.mktemp("toy") / "toy_host.py"
    file.write_text(code)
    return runpy.run_path(str(file))["generate"]


class TestToyHost(HostContract):
    vocab_size = MODEL.config.vocab_size

    @pytest.fixture(autouse=True, scope="class")
    def host(self, toy, request):
        request.cls.toy = staticmethod(toy)

    def generate(self, prompt, max_tokens, config, plugins):
        return self.toy(MODEL, prompt, max_tokens, config, plugins=plugins)[0]


def plain_ids(prompt, count):
    with torch.inference_mode():
        ids = MODEL.generate(torch.tensor([prompt]), max_new_tokens=count, do_sample=False, eos_token_id=None)
    return ids[0, len(prompt) :].tolist()


@pytest.mark.parametrize("method", ["ngram", "eagle", "draft_model"])
def test_methods_run_in_the_toy_host_and_change_no_text(method, toy, tmp_path):
    prompt = [5, 9, 5, 9, 5, 9]
    config = {"method": method, "num_speculative_tokens": 3}
    if method == "ngram":
        config |= {"prompt_lookup_min": 1, "prompt_lookup_max": 2}
    elif method == "draft_model":
        MODEL.save_pretrained(tmp_path)
        config |= {"model": str(tmp_path)}
    else:
        config |= {"model": str(eagle_head(tmp_path))}
    ids, forwards = toy(MODEL, prompt, 24, config)
    assert ids == plain_ids(prompt, 24)
    if method == "draft_model":
        assert forwards <= 24 / 4 + 2, "the target drafts for itself"


def eagle_head(folder):
    """A head of random weights in EAGLE-1's layout."""
    import json

    from safetensors.torch import save_file

    config = MODEL.config
    width, inner = config.hidden_size, config.intermediate_size
    head_dim = width // config.num_attention_heads
    kv = config.num_key_value_heads * head_dim
    shapes = {
        "fc.weight": (width, 2 * width),
        "layers.0.self_attn.q_proj.weight": (width, width),
        "layers.0.self_attn.k_proj.weight": (kv, width),
        "layers.0.self_attn.v_proj.weight": (kv, width),
        "layers.0.self_attn.o_proj.weight": (width, width),
        "layers.0.mlp.gate_proj.weight": (inner, width),
        "layers.0.mlp.up_proj.weight": (inner, width),
        "layers.0.mlp.down_proj.weight": (width, inner),
        "layers.0.post_attention_layernorm.weight": (width,),
    }
    generator = torch.Generator().manual_seed(0)
    save_file({k: torch.randn(v, generator=generator) * 0.1 for k, v in shapes.items()}, folder / "model.safetensors")
    data = {**config.to_dict(), "num_hidden_layers": 1, "architectures": ["LlamaForCausalLMEagle"]}
    (folder / "config.json").write_text(json.dumps(data, default=str))
    return folder

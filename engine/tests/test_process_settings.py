"""Settings of other libraries and of the process are as they were, whatever an engine did or failed to do."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numba
import pytest
import torch
from generate_calls import ours, settings
from runs import params, prompts
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from words import model_folder

from specdec_core.cli.main import main
from specdec_core.errors import ConfigError, TargetError
from specdec_engine import LLM
from specdec_testing.settings import unchanged
from specdec_testing.stubs import Null, stub_plugin
from specdec_testing.targets import tiny_target

pytestmark = pytest.mark.slow

NGRAM = {"method": "ngram", "num_speculative_tokens": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module", autouse=True)
def libraries_are_there(folder: Path) -> None:
    """Import what an engine imports, for what an import changes is not the engine's doing."""
    with LLM(folder, {"method": "draft_model", "model": str(folder), "num_speculative_tokens": 2}) as llm:
        llm.generate(prompts((40,)), params(1))
    with LLM(folder, NGRAM) as llm:
        llm.generate(prompts((40,)), params(1))


@pytest.fixture(autouse=True)
def unusual_settings(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make settings differ from what libraries begin with, so that one that is put back to its default shows."""
    kept = torch.get_num_threads(), numba.get_num_threads(), torch.get_default_dtype()
    torch.set_num_threads(2)
    numba.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(7)
    random.seed(7)
    yield
    torch.set_num_threads(kept[0])
    numba.set_num_threads(kept[1])
    torch.set_default_dtype(kept[2])
    torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("method", ["none", "ngram", "draft_model"])
def test_after_building_running_streaming_and_closing(folder: Path, method: str) -> None:
    drafting = {"method": "draft_model", "model": str(folder), "num_speculative_tokens": 2}
    config = {"none": None, "ngram": NGRAM, "draft_model": drafting}[method]
    with unchanged():
        llm = LLM(folder, config, dtype="float32")
        with unchanged():
            llm.generate(prompts((40, 9)), params(2, temperature=0.8))
            stream = llm.stream(prompts((9,)), params(1))
            next(stream)
            stream.close()
        llm.close()


# numba marks its errors in colour where colorama is installed, as it comes with mkdocs, and that registers something at
# exit: the library's doing, and not ours.
IMPORTS = """
import numba.cpython.listobj
from specdec_testing.settings import unchanged
with unchanged():
    import specdec_engine, specdec_plugin_ngram.kernels.numba, specdec_plugin_verifiers.kernels.numba
    import specdec_nn.ops.attention.numba, specdec_nn.ops.linear.numba, specdec_nn.ops.truncate.numba
"""


def test_after_importing_everything_into_a_process_that_has_the_libraries() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


FRESH = """
import torch
torch.set_num_threads(1)
from specdec_testing.targets import tiny_target
from specdec_engine import LLM, SamplingParams
with LLM(hf_model=tiny_target("llama"), max_model_len=256) as llm:
    llm.generate([[5] * 200, [6] * 200], SamplingParams(max_tokens=4, temperature=0.8), use_tqdm=False)
import numba
assert numba.threading_layer(), "numba's threads have been started"
assert torch.get_num_threads() == 1, torch.get_num_threads()
"""


def test_torchs_threads_outlive_the_start_of_numbas() -> None:
    environment = {**os.environ, "NUMBA_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", FRESH], capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr


def test_the_attention_function_is_in_transformers_table_during_a_forward_alone() -> None:
    seen: list[bool] = []
    model = tiny_target("llama")
    model.lm_head.register_forward_pre_hook(lambda module, args: seen.append("specdec" in ALL_ATTENTION_FUNCTIONS))
    with LLM(hf_model=model, fused=False) as one, LLM(hf_model=model, fused=False) as other:
        seen.clear()
        one.generate(prompts((9,)), params(1))
        assert seen and all(seen) and "specdec" not in ALL_ATTENTION_FUNCTIONS
        other.generate(prompts((9,)), params(1))
    assert "specdec" not in ALL_ATTENTION_FUNCTIONS


def test_numbas_kernels_use_torchs_threads_during_a_step(folder: Path) -> None:
    seen: set[int] = set()
    with LLM(folder, NGRAM, dtype="float32") as llm:
        llm.model.lm_head.register_forward_pre_hook(lambda module, args: seen.add(numba.get_num_threads()))
        llm.generate(prompts((9,)), params(1))
    assert seen == {min(2, numba.config.NUMBA_NUM_THREADS)} and numba.get_num_threads() == 1


def test_between_the_steps_of_a_stream(folder: Path) -> None:
    with unchanged():
        llm = LLM(folder, NGRAM, dtype="float32")
        for _ in llm.stream(prompts((9,)), params(1)):
            with unchanged():
                next(llm.stream(prompts((3,)), params(1)))
        llm.close()


def test_after_a_build_that_fails_at_any_stage(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors.torch import load_file, save_file

    broken = model_folder(tmp_path / "broken")
    weights = load_file(broken / "model.safetensors")
    weights.pop(sorted(weights)[-1])
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})

    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("a late part fails")

    stub = {"method": "stub", "num_speculative_tokens": 2}
    with unchanged():
        with pytest.raises(TargetError, match="lacks"):
            LLM(broken)
        with pytest.raises(ConfigError):
            LLM(folder, {"method": "nosuch"})
        with pytest.raises(ConfigError):
            LLM(folder, {"method": "draft_model", "model": str(tmp_path / "nowhere"), "num_speculative_tokens": 2})
        with pytest.raises(TargetError, match="attention interface"):
            LLM(hf_model=tiny_target("bloom"))
        with pytest.raises(RuntimeError, match="a late part"), monkeypatch.context() as patch:
            patch.setattr("specdec_engine.build.EngineStats", fail)
            LLM(folder, stub, plugins={"stub": stub_plugin(Null())})


def test_after_a_step_that_raised(folder: Path) -> None:
    def fail(module: Any, args: Any) -> None:
        raise RuntimeError("the model fails")

    with unchanged():
        llm = LLM(folder, NGRAM, dtype="float32")
        llm.model.get_input_embeddings().register_forward_pre_hook(fail)
        with pytest.raises(RuntimeError, match="the model fails"):
            llm.generate(prompts((9,)), params(1))
        llm.close()


def test_after_generate_of_transformers() -> None:
    model = tiny_target("llama")
    attention = model.config._attn_implementation
    with unchanged():
        ours(model, input_ids=torch.tensor([[5, 6, 7]]), **settings())
        assert model.config._attn_implementation == attention


def test_after_a_command_line_right_or_wrong(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = '{"method": "ngram", "num_speculative_tokens": 3}'
    run = ["generate", str(folder), "--prompt", "cat dog", "--max-tokens", "4", "--dtype", "float32"]
    main([*run, "-sc", config])
    main(["explain", "--nosuch"])  # imports what prints usage errors, which draws a number at import
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    with unchanged():
        assert main([*run, "-sc", config]) == 0
        assert main([*run, "-sc", config, "--stream"]) == 0
        assert main([*run, "-sc", config, "--json", "--compare"]) == 0
        assert main([*run, "-sc", "{"]) == 2
        assert main(["generate", "--nosuch"]) == 2
        assert main(["plugins", "list"]) == 0
        assert main(["explain", "--speculative-config", config, "--model", str(folder)]) == 0
    assert capsys.readouterr().out

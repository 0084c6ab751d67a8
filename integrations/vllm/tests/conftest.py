"""One engine of vLLM at a time, in this process, with tiny models; a plain run of the same prompts to compare with."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import sys
import time
from pathlib import Path

import pytest

# Before vLLM is imported: it reads these once.
os.environ.update(
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_NO_USAGE_STATS="1",
    VLLM_LOGGING_LEVEL="WARNING",
    HF_HUB_OFFLINE="1",
    TOKENIZERS_PARALLELISM="false",
    TORCHDYNAMO_DISABLE="1",  # vLLM compiles its sampling of one row, which takes half a minute
)
sys.path.insert(0, str(Path(__file__).parent))

COMMON = {
    "dtype": "float32",
    "max_model_len": 256,
    "max_num_seqs": 8,
    "enforce_eager": True,
    "disable_log_stats": False,
    "enable_prefix_caching": False,
    "seed": 0,
}


def register_kernels_once():
    """Keep vLLM from registering its CPU kernels again for a second engine in one process.

    It looks through all modules for them, and fails at an object of llvmlite as soon as numba has been imported.
    """
    from vllm.platforms.cpu import CpuPlatform

    original = CpuPlatform.register_triton_kernel_overrides

    @classmethod
    def once(cls, done=[]):  # noqa: B006 - shared on purpose
        if not done:
            done.append(original())

    if original.__func__.__name__ != "once":
        CpuPlatform.register_triton_kernel_overrides = once


@contextlib.contextmanager
def engine(model, make=None, **arguments):
    """An engine that is taken down afterwards, so that the next one finds the memory free."""
    import vllm
    from vllm.distributed import cleanup_dist_env_and_memory

    register_kernels_once()
    began = time.monotonic()
    llm = (make or vllm.LLM)(str(model), **{**COMMON, **arguments})
    print(f"  [engine started in {time.monotonic() - began:.0f} s]", flush=True)
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()
        cleanup_dist_env_and_memory()


def tokens(llm, prompts, params, **kwargs):
    """The ids of every answer, in order; samples of one prompt side by side."""
    asked = [{"prompt_token_ids": prompt} for prompt in prompts]
    outputs = llm.generate(asked, params, use_tqdm=False, **kwargs)
    return [[list(sample.token_ids) for sample in output.outputs] for output in outputs]


def metrics(llm):
    """vLLM's counters by name, without the prefix; a list for those by position."""
    found = {}
    for metric in llm.get_metrics():
        value = getattr(metric, "value", None)
        value = getattr(metric, "values", None) if value is None else value
        if value is not None:
            found[metric.name.removeprefix("vllm:")] = value
    return found


@pytest.fixture(scope="session")
def llama(tmp_path_factory):
    from vllm_models import random_llama

    return random_llama(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture
def logged():
    """What we log; vLLM's loggers do not pass it on to pytest."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append
    logger = logging.getLogger("vllm.specdec")
    logger.addHandler(handler)
    yield records
    logger.removeHandler(handler)


def pytest_runtest_logstart(nodeid, location):
    """Say which test runs: starting an engine takes seconds."""
    print(f"\n{nodeid.rpartition('/')[2]}", end="", flush=True)

"""Sampled text follows the target, through vLLM's own sampling with drafts; without the fix it does not, on CPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

SIZE, REQUESTS, LENGTH = 6, 48, 160
TEMPERATURES = (1.0, 0.6)
# Neither row nor column is uniform, and the drafts of `table_drafts` are right in a good part of all cases.
DISTRIBUTION = torch.tensor(
    [[1.0 + 4.0 * (j == (i + 1) % SIZE) + 0.7 * ((i * j) % 4) for j in range(SIZE)] for i in range(SIZE)]
)
DISTRIBUTION /= DISTRIBUTION.sum(dim=1, keepdim=True)


def sampled(folder: Path, switch: str, way: str) -> list[list[int]]:
    """Return what a vLLM in its own process samples, half of the requests at each temperature.

    With `switch` "0" vLLM is unchanged; `way` is "plain", "custom_class" or "specdec".
    """
    environment = {**os.environ, "SPECDEC_VLLM": switch}
    command = [sys.executable, __file__, str(folder), way]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def worst(answers: list[list[int]]) -> float:
    """Return the smallest p-value of any id's successors at either temperature, times how many there are."""
    values = []
    for which, temperature in enumerate(TEMPERATURES):
        distribution = torch.softmax(DISTRIBUTION.double().log() / temperature, dim=1).numpy()
        counts = np.zeros((SIZE, SIZE))
        for ids in answers[which :: len(TEMPERATURES)]:
            np.add.at(counts, (ids[:-1], ids[1:]), 1)
        for row, expected in zip(counts, distribution, strict=True):
            values.append(stats.chisquare(row, row.sum() * expected).pvalue)
    assert sum(map(len, answers)) >= REQUESTS * LENGTH
    return float(np.nanmin(values) * len(values)) if not np.isnan(values).all() else 0.0


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    from vllm_models import table_llama

    return table_llama(tmp_path_factory.mktemp("table") / "model", DISTRIBUTION)


def test_the_table_is_what_vllm_without_speculation_samples(table):
    assert worst(sampled(table, "0", "plain")) > 1e-3


@pytest.mark.parametrize("way", ["custom_class", "specdec"])
def test_sampled_text_follows_the_target_with_the_plugin(table, way):
    assert worst(sampled(table, "1", way)) > 1e-3


def test_without_the_plugin_sampled_text_does_not_follow_the_target(table):
    """If this fails, vLLM's fault is gone, and so can the fix be."""
    assert worst(sampled(table, "0", "custom_class")) < 1e-6


def test_the_probe_tells_the_faulty_kernel_from_ours():
    from vllm.platforms import current_platform
    from vllm.utils import cpu_triton_utils

    from specdec_vllm import sampling

    current_platform.import_kernels()

    def faulty(output, input_val, cu_num_tokens, replace_from, replace_to):
        torch.ops._C.expand_kernel_impl(
            cpu_triton_utils._ensure_int64(output),
            cpu_triton_utils._ensure_int64(input_val),
            cpu_triton_utils._ensure_int64(cu_num_tokens),
            replace_from,
            replace_to,
        )

    assert sampling.is_wrong(faulty)
    assert not sampling.is_wrong(sampling.expand)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int64])
def test_spreading_gives_each_place_the_value_of_its_request(dtype):
    from specdec_vllm import sampling

    values, counts = torch.tensor([3, 0, 5, 7]), [2, 3, 0, 1]
    output = torch.full((8,), 9, dtype=dtype)
    sampling.expand(output, values.to(dtype), torch.tensor(counts).cumsum(0).to(torch.int32), 0, 1)
    assert output.tolist() == [3, 3, 1, 1, 1, 7, 9, 9]


def main(folder: str, way: str) -> None:
    """Sample and print the ids, as the process that `sampled` starts."""
    import tempfile

    import vllm_methods
    from conftest import engine, tokens

    arguments = {
        "plain": {},
        "specdec": {"speculative_config": {"method": "specdec", "model": "table_drafts", "num_speculative_tokens": 3}},
        "custom_class": {
            "speculative_config": {"method": way, "model": "specdec_vllm.Proposer", "num_speculative_tokens": 3},
            "additional_config": {"specdec": {"method": "table_drafts"}},
        },
    }[way]
    with tempfile.TemporaryDirectory() as site:
        sys.path.append(str(vllm_methods.register(Path(site))))
        from vllm import SamplingParams

        params = [
            SamplingParams(temperature=TEMPERATURES[i % len(TEMPERATURES)], max_tokens=LENGTH, ignore_eos=True)
            for i in range(REQUESTS)
        ]
        with engine(folder, max_num_seqs=REQUESTS, **arguments) as llm:
            found = tokens(llm, [[i % SIZE] for i in range(REQUESTS)], params)
    print(json.dumps([answer[0] for answer in found]))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The KV cache is planned from the least of what host, container and process leave; each limit is read where it is."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specdec_core.errors import TargetError
from specdec_engine import LLM
from specdec_engine.memory import kv_plan
from specdec_engine.memory.room import UNKNOWN, Room, host_room
from specdec_testing.targets import tiny_target

GB = 10**9
V1_NONE = "9223372036854771712"


@pytest.fixture(autouse=True)
def no_limit_of_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        pytest.skip("this test run has a limit of addresses itself")


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": f"MemTotal: 1 kB\nMemAvailable: {20 * GB // 1024} kB\n", **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def v2(folder: str, **values: str) -> dict[str, str]:
    return {f"sys/fs/cgroup/{folder}/memory.{name}": text + "\n" for name, text in values.items()}


def v1(folder: str, limit: str, used: int, stat: str = "") -> dict[str, str]:
    at = f"sys/fs/cgroup/memory/{folder}"
    return {
        f"{at}/memory.limit_in_bytes": limit + "\n",
        f"{at}/memory.usage_in_bytes": f"{used}\n",
        f"{at}/memory.stat": stat,
    }


def test_without_a_container_the_host_decides(tmp_path: Path) -> None:
    room = host_room(tree(tmp_path, {}))
    assert room.free == 20 * GB // 1024 * 1024 and "MemAvailable" in room.bound


def test_a_system_that_tells_nothing_is_assumed_to_have_a_little(tmp_path: Path) -> None:
    assert host_room(tmp_path).free == UNKNOWN


def test_a_v2_container_sees_its_own_limit_at_the_mount_point(tmp_path: Path) -> None:
    files = v2("", max=str(2 * GB), current=str(GB // 2), high="max", stat="anon 1\ninactive_file 100\n")
    room = host_room(tree(tmp_path, {"proc/self/cgroup": "0::/\n", **files}))
    assert room.free == 2 * GB - GB // 2 + 100
    assert "memory.max of 2,000,000,000 bytes" in room.bound


def test_the_tightest_of_nested_v2_groups_decides(tmp_path: Path) -> None:
    files = (
        v2("a", max=str(3 * GB), current=str(2 * GB))
        | v2("a/b", max="max", high="max", current=str(GB))
        | v2("a/b/c", max=str(8 * GB), current="0")
    )
    root = tree(tmp_path, {"proc/self/cgroup": "0::/a/b/c\n", **files})
    assert host_room(root).free == GB and "/a," in host_room(root).bound


def test_the_throttle_of_v2_counts_as_a_limit(tmp_path: Path) -> None:
    files = v2("a", max=str(3 * GB), high=str(2 * GB), current=str(GB))
    assert host_room(tree(tmp_path, {"proc/self/cgroup": "0::/a\n", **files})).free == GB


@pytest.mark.parametrize("path", ["/kubepods/pod1/x", "/../../other", "/"])
def test_a_path_of_the_host_that_is_not_visible_here_leads_to_the_mount_point(tmp_path: Path, path: str) -> None:
    files = v2("", max=str(2 * GB), current="0")
    assert host_room(tree(tmp_path, {"proc/self/cgroup": f"0::{path}\n", **files})).free == 2 * GB


def test_a_v1_container_sees_its_limit_less_what_is_in_use(tmp_path: Path) -> None:
    stat = "inactive_file 5\nhierarchical_memory_limit 2000000000\ntotal_inactive_file 300\n"
    files = v1("docker/x", str(2 * GB), GB, stat) | v1("", V1_NONE, 9 * GB)
    root = tree(tmp_path, {"proc/self/cgroup": "5:cpu:/\n4:memory:/docker/x\n1:name=systemd:/\n0::/\n", **files})
    assert host_room(root).free == GB + 300


def test_a_v1_limit_of_a_hidden_parent_counts(tmp_path: Path) -> None:
    files = v1("", V1_NONE, GB, "hierarchical_memory_limit 1500000000\n")
    room = host_room(tree(tmp_path, {"proc/self/cgroup": "4:memory,hugetlb:/docker/x\n", **files}))
    assert room.free == GB // 2 and "hierarchical_memory_limit" in room.bound


def test_v1_without_a_limit_leaves_the_host_to_decide(tmp_path: Path) -> None:
    files = v1("", V1_NONE, GB, f"hierarchical_memory_limit {V1_NONE}\n")
    assert "MemAvailable" in host_room(tree(tmp_path, {"proc/self/cgroup": "4:memory:/\n", **files})).bound


def test_mount_points_are_found_where_they_are(tmp_path: Path) -> None:
    mounts = (
        "35 31 0:32 /docker/x /elsewhere/mem rw - cgroup cgroup rw,memory\n"
        "36 31 0:33 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
        "41 31 0:38 / /one rw shared:1 - cgroup2 cgroup2 rw,nsdelegate\n"
    )
    files = {
        "proc/self/mountinfo": mounts,
        "proc/self/cgroup": "4:memory:/docker/x/child\n0::/u\n",
        "elsewhere/mem/child/memory.limit_in_bytes": str(4 * GB),
        "elsewhere/mem/child/memory.usage_in_bytes": "0",
        "one/u/memory.max": str(5 * GB),
        "one/u/memory.current": "0",
    }
    root = tree(tmp_path, files)
    assert host_room(root).free == 4 * GB
    (root / "one/u/memory.max").write_text(str(3 * GB))
    assert host_room(root).free == 3 * GB


@pytest.mark.parametrize("broken", ["", "max", "-1", "lots"])
def test_a_limit_that_cannot_be_read_is_no_limit(tmp_path: Path, broken: str) -> None:
    files = v2("", max=broken, current="5") | {"sys/fs/cgroup/memory.stat": "inactive_file\nx y z\n"}
    assert "MemAvailable" in host_room(tree(tmp_path, {"proc/self/cgroup": "0::/\nnonsense\n", **files})).bound


def test_more_in_use_than_allowed_leaves_nothing(tmp_path: Path) -> None:
    files = v2("", max=str(GB), current=str(2 * GB))
    assert host_room(tree(tmp_path, {"proc/self/cgroup": "0::/\n", **files})).free == 0


def plan_under(monkeypatch: pytest.MonkeyPatch, free: int, **arguments: Any) -> int:
    monkeypatch.setattr(kv_plan, "host_room", lambda: Room(free=free, bound="a limit"))
    given: dict[str, Any] = {"wanted": None, "most": 10**9, "bytes_per_token": 100, "coming": 0, **arguments}
    return kv_plan.plan(device=torch.device("cpu"), **given)


def test_the_plan_follows_free_memory_less_the_drafter_and_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "specdec_engine")
    assert plan_under(monkeypatch, 2 * GB) == 8_000_000
    assert plan_under(monkeypatch, 2 * GB, coming=GB) == 4_000_000
    assert plan_under(monkeypatch, 2 * GB, most=77) == 77
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 3 and "40% of free memory" in told[0] and "by a limit" in told[0]
    assert "less 953.7 MiB for the drafter's weights" in told[1] and "max_num_seqs times" in told[2]


def test_a_set_number_above_free_memory_is_honoured_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert plan_under(monkeypatch, 1000, wanted=32) == 32
    assert "kv_cache_tokens=32" in caplog.text and "a limit" in caplog.text


def test_no_room_for_one_page_is_an_error_that_names_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TargetError, match=r"by a limit.*raise the limit, or set kv_cache_tokens"):
        plan_under(monkeypatch, 5000)


def test_recurrent_states_take_their_room_before_positions_do_and_leave_a_set_number_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "specdec_engine")
    states = kv_plan.States(requests=4, each=100_000_000)
    assert plan_under(monkeypatch, 2 * GB, states=states) == 4_000_000
    assert "and recurrent states of 4 requests, 100,000,000 bytes each (762.9 MiB)" in caplog.text
    assert plan_under(monkeypatch, 2 * GB, states=states, wanted=640) == 640
    with pytest.raises(TargetError, match=r"recurrent states of 4 requests.*set a smaller max_num_seqs"):
        plan_under(monkeypatch, GB, states=states)


def test_a_drafters_files_count_unless_they_are_the_targets(tmp_path: Path) -> None:
    tiny_target("llama").save_pretrained(tmp_path)
    size = (tmp_path / "model.safetensors").stat().st_size
    from specdec_core.sources import DraftSource

    resolved = SimpleNamespace(drafts=(DraftSource(tmp_path),))
    elsewhere, same = SimpleNamespace(model="org/target"), SimpleNamespace(model=str(tmp_path))
    assert kv_plan.draft_bytes(resolved, elsewhere) == size
    assert kv_plan.draft_bytes(resolved, same) == kv_plan.draft_bytes(None, same) == 0


def test_a_drafter_that_takes_more_than_its_files_say_makes_the_cache_smaller(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.INFO, "specdec_engine")
    tiny_target("llama").save_pretrained(tmp_path)
    drafting = {"method": "draft_model", "model": str(tmp_path), "num_speculative_tokens": 2}
    rooms = iter([Room(free=GB, bound="a limit"), Room(free=10**6, bound="a limit")])
    monkeypatch.setattr(kv_plan, "host_room", lambda: next(rooms))
    with LLM(hf_model=tiny_target("llama"), speculative_config=drafting, max_num_seqs=10**6) as llm:
        # 256 bytes for each position, and whole pages
        assert llm.kv_cache_tokens == -(-int(0.4 * 10**6 / 256) // 32) * 32
    assert "with the drafter loaded, 1.0 MiB are free by a limit" in caplog.text


def test_an_engine_says_what_its_kv_cache_was_planned_from(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "specdec_engine")
    with LLM(hf_model=tiny_target("llama"), max_model_len=64, max_num_seqs=2) as llm:
        assert llm.kv_cache_tokens == 128
    assert sum("KV cache: 128 positions of" in record.getMessage() for record in caplog.records) == 1


UNDER_A_LIMIT = """
import os, resource
from specdec_testing.targets import tiny_target
from specdec_engine import LLM, SamplingParams
model = tiny_target("llama")
greedy = SamplingParams(temperature=0, max_tokens=4)
with LLM(hf_model=model, kv_cache_tokens=64) as llm:  # threads and libraries are there before the limit is set
    wanted = llm.generate([1, 2, 3], greedy, use_tqdm=False)[0].outputs[0].token_ids
used = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, resource.RLIM_INFINITY))
with LLM(hf_model=model, max_num_seqs=10**7) as llm:
    got = llm.generate([1, 2, 3], greedy, use_tqdm=False)[0].outputs[0].token_ids
    assert got == wanted
    print(llm.kv_cache_tokens, llm.get_state().kv_bytes)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="sizes of a process are read from /proc")
def test_a_process_under_a_limit_of_addresses_plans_within_it_and_runs() -> None:
    done = subprocess.run([sys.executable, "-c", UNDER_A_LIMIT], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    tokens, allocated = map(int, done.stdout.split())
    assert tokens > 1000 and 0 < allocated <= 0.4 * 2**30 + 2**20

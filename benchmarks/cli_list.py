"""Measures `specdec plugins list` above interpreter start, with many distributions installed; prints one JSON object.

Fake distributions (metadata only) are written into a temporary folder; every `--ours`-th of them offers a plugin and
depends on specdec-core. Runs of the bare interpreter and of the command alternate; the medians are compared, and the
best runs, which say what the work costs on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT_MS = 120.0


def write_distributions(folder: Path, count: int, ours: int) -> None:
    """Write `count` dist-info folders, of which every `ours`-th offers a proposer."""
    for i in range(count):
        name = f"fake_dist_{i:03d}"
        info = folder / f"{name}-1.0.dist-info"
        info.mkdir()
        requires = "\n".join(f"Requires-Dist: other-{j}>=1" for j in range(8))
        points = f"[console_scripts]\n{name} = {name}:main\n"
        if i % ours == 0:
            requires += "\nRequires-Dist: specdec-core>=0.1"
            points += f"\n[specdec.proposers.v1]\nm{i} = {name}.plugin:plugin\n"
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{requires}\n\n" + "A long description. " * 200
        (info / "METADATA").write_text(text)
        (info / "entry_points.txt").write_text(points)


def milliseconds(command: list[str], environment: dict[str, str]) -> float:
    """Return the wall time of one run of a command."""
    start = time.perf_counter()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return 1e3 * (time.perf_counter() - start)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--distributions", type=int, default=150)
    parser.add_argument("--ours", type=int, default=10, help="every n-th distribution offers a plugin")
    parser.add_argument("--repeats", type=int, default=21)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_distributions(Path(folder), arguments.distributions, arguments.ours)
        environment = {**os.environ, "PYTHONPATH": folder}
        bare = [sys.executable, "-c", "pass"]
        listing = [sys.executable, "-m", "specdec_core", "plugins", "list"]
        for command in (bare, listing):
            milliseconds(command, environment)
        pairs = [[milliseconds(command, environment) for command in (bare, listing)] for _ in range(arguments.repeats)]
    columns = list(zip(*pairs, strict=True))
    start, total = (statistics.median(column) for column in columns)
    result = {
        "distributions": arguments.distributions,
        "with_plugins": len(range(0, arguments.distributions, arguments.ours)),
        "interpreter_ms": round(start, 1),
        "list_ms": round(total, 1),
        "above_interpreter_ms": round(total - start, 1),
        "above_interpreter_ms_best": round(min(columns[1]) - min(columns[0]), 1),
        "limit_ms": LIMIT_MS,
        "within": total - start < LIMIT_MS,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()

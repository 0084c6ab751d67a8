"""Checks and measures all that runs on a GPU, in under five minutes on one H100 or H200, and writes it down.

    python benchmarks/gpu_check.py --out gpu.json
    python benchmarks/gpu_check.py --dry-run          # tiny sizes on the CPU, in Triton's interpreter

Each part runs in a process of its own, so that neither an error nor a fault of the device takes others along, and is
ended at its time limit. What a part had found by then stays. The target is a random Llama with the widths of a 1B model
and a head that is not tied, the head an EAGLE-3 one of its widths; no file is needed.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

sys.path.insert(0, str(Path(__file__).parent))

Row = dict[str, Any]
# In the order of their worth: whoever runs this may have to stop early. Seconds that each may take.
PARTS: dict[str, float] = {
    "verification": 50,
    "attention": 50,
    "others": 30,
    "identity": 60,
    "decoding": 90,
    "heads": 40,
}
MARK = "gpu_check row "  # before each row that a part's process writes to its output
SHOWN = 160


def part_of(name: str) -> Callable[..., Iterator[Row]]:
    """Return what yields the rows of a part."""
    from gpu_parts import decoding, ops

    for module in (ops, decoding):
        if hasattr(module, name):
            found: Callable[..., Iterator[Row]] = getattr(module, name)
            return found
    message = f"no part {name!r}; there are {', '.join(PARTS)}"
    raise typer.BadParameter(message)


def rows_of(name: str, dry: bool) -> Iterator[Row]:
    """Yield the rows of a part, and a last one with its error if it has one."""
    import torch

    from gpu_parts.sizes import LARGE, SMALL

    device = torch.device("cpu" if dry else "cuda")
    try:
        yield from part_of(name)(SMALL if dry else LARGE, device)
    except Exception as error:
        yield {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc(limit=-8)}


def environment_of(dry: bool) -> dict[str, str]:
    """Return the environment of the parts; on a CPU Triton's forms are interpreted, and engines run on numba's."""
    kernels = {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    return {**os.environ, **(kernels if dry else {})}


def in_process(name: str, dry: bool, limit: float) -> list[Row]:
    """Return the rows of a part that runs in a process of its own, until its end or its limit."""
    command = [sys.executable, __file__, "--only", name, *(["--dry-run"] if dry else [])]
    # A file and no pipe: what is in it stays, whatever becomes of the process.
    with tempfile.TemporaryFile("w+") as output:
        worker = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment_of(dry))
        try:
            status = worker.wait(limit)
            ended = [] if status == 0 else [{"error": f"the process ended with status {status}"}]
        except subprocess.TimeoutExpired:
            ended = [{"error": f"ended at its limit of {limit:.0f} s"}]
        finally:
            worker.kill()
            worker.wait()
        output.seek(0)
        lines = output.read().splitlines()
    rows = [json.loads(line.removeprefix(MARK)) for line in lines if line.startswith(MARK)]
    if ended and not any("error" in row for row in rows):
        ended[0]["output"] = "\n".join(line for line in lines if not line.startswith(MARK))[-2000:]
    return rows + ended


def machine(dry: bool) -> Row:
    """Return what this runs on."""
    import torch
    import transformers
    import triton

    found: Row = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "transformers": transformers.__version__,
        "dry_run": dry,
    }
    if not dry:
        properties = torch.cuda.get_device_properties(0)
        found |= {"gpu": properties.name, "memory_gib": round(properties.total_memory / 2**30, 1)}
        found |= {"cuda": torch.version.cuda, "processors": properties.multi_processor_count}
    return found


def line(row: Row) -> str:
    """Return a row as a line of the table."""
    if "error" in row:
        return f"  ERROR {row['error']}"
    mark = {True: "ok   ", False: "WRONG", None: "     "}[row.get("equal")]
    name = " ".join(str(row[key]) for key in ("op", "case") if key in row)
    numbers = [
        f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in row.items()
        if key not in ("op", "case", "equal", "traceback")
    ]
    return f"  {mark} {name}: {', '.join(numbers)}"[:SHOWN]


def check(dry: bool, parts: list[str], out: Path, isolate: bool) -> bool:
    """Run parts one after the other, writing what is known after each; return whether all was well."""
    report: Row = {"machine": machine(dry), "parts": {}}
    print(json.dumps(report["machine"]))
    fine = True
    for name in parts:
        start = time.perf_counter()
        rows = in_process(name, dry, PARTS[name]) if isolate else list(rows_of(name, dry))
        report["parts"][name] = {"seconds": round(time.perf_counter() - start, 2), "rows": rows}
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(report, indent=1) + "\n")
        print(f"{name} ({report['parts'][name]['seconds']} s)", *map(line, rows), sep="\n", flush=True)
        fine &= bool(rows) and not any("error" in row or row.get("equal") is False for row in rows)
    return fine


def main(
    out: Annotated[Path, typer.Option(help="JSON with all figures.")] = Path("benchmarks/results/gpu.json"),
    dry_run: Annotated[bool, typer.Option(help="Tiny sizes on the CPU, in one process.")] = False,
    part: Annotated[list[str] | None, typer.Option(help="Run this part; may be repeated.")] = None,
    only: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Check and measure; exits with 1 if a part has an error or a kernel differs from its definition."""
    if only is not None:
        for row in rows_of(only, dry_run):
            print(MARK + json.dumps(row), flush=True)
        return
    if dry_run and os.environ.get("TRITON_INTERPRET") != "1":  # read when Triton is imported
        os.execve(sys.executable, [sys.executable, *sys.argv], environment_of(dry=True))
    unknown = [name for name in part or () if name not in PARTS]
    if unknown:
        message = f"no part {unknown[0]!r}; there are {', '.join(PARTS)}"
        raise typer.BadParameter(message)
    raise typer.Exit(0 if check(dry_run, part or list(PARTS), out, isolate=not dry_run) else 1)


if __name__ == "__main__":
    typer.run(main)

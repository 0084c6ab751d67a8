"""A peer as a process of its own, which is stopped while another one works; it knows lines of JSON and no library."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import IO, Any, Final

SCRIPT: Final = Path(__file__).parent / "worker.py"


class Peer:
    """A process that answers one line of JSON for each call. All of its threads stand still between calls."""

    def __init__(self, name: str, python: str, settings: dict[str, Any], errors: IO[str]) -> None:
        """Start it; its first answer, which `start` waits for, tells what it is. `errors` takes all else it prints."""
        self.name = name
        self.about: dict[str, Any] = {}
        threads = str(settings["threads"])
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": threads,
            "NUMBA_NUM_THREADS": threads,
            "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_LOGGING_LEVEL": "WARNING",
            "VLLM_NO_USAGE_STATS": "1",
        }
        self._process = subprocess.Popen(
            [python, str(SCRIPT), json.dumps(settings)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )

    def start(self) -> None:
        """Wait until it can answer. Raises RuntimeError if it ends instead."""
        self.about = self._answer()
        self._signal(signal.SIGSTOP)

    def ask(self, call: str, **arguments: Any) -> dict[str, Any]:
        """Return the answer to a call. Raises RuntimeError if the process ends, or the call fails there."""
        self._signal(signal.SIGCONT)
        assert self._process.stdin is not None
        print(json.dumps({"call": call, **arguments}), file=self._process.stdin, flush=True)
        try:
            return self._answer()
        finally:
            self._signal(signal.SIGSTOP)

    def close(self) -> None:
        """End the process; waits, so that its CPU time is counted among that of the children."""
        self._signal(signal.SIGCONT)
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _signal(self, number: int) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith('{"peer_bench": '):
                answer: dict[str, Any] = json.loads(line)["peer_bench"]
                if "error" in answer:
                    message = f"{self.name}: {answer['error']}"
                    raise RuntimeError(message)
                return answer
        message = f"the process of {self.name} ended with code {self._process.wait()}"
        raise RuntimeError(message)

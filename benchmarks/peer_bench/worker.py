"""The process of a peer: builds the library that the settings name, then answers calls until its input ends."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import signal
import sys
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from peer_bench.timed import Timed

PR_SET_PDEATHSIG: Final = 1


class Library(Protocol):
    """One library with its arms."""

    def about(self) -> dict[str, Any]:
        """Return versions, threads and what else the times depend on."""

    def generate(self, arm: str, prompts: list[list[int]], max_tokens: int, *, keep: bool, space: str) -> Timed:
        """Answer prompts together, greedily.

        keep   what is known of the beginning of earlier prompts may be used
        space  answers are remembered for later ones of the same space, by arms that remember answers
        """

    def forwards(self, rows: list[int], context: int, turns: int) -> dict[int, list[float]]:
        """Return seconds of forwards by rows over so many known ids, rows in turn."""


def say(answer: dict[str, Any]) -> None:
    """Write one line for the parent."""
    print(json.dumps({"peer_bench": answer}), flush=True)


def die_with_parent() -> None:
    """Let the system end this process with its parent: a stopped one does not see that its input has ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def find_package() -> None:
    """Make this package importable without its folder's neighbours, of which libraries would take some for others."""
    folder = Path(__file__).parent
    sys.path.remove(str(folder))
    spec = importlib.util.spec_from_file_location(
        "peer_bench", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    sys.modules["peer_bench"] = importlib.util.module_from_spec(spec)


def main() -> None:
    """Build, then answer."""
    die_with_parent()
    settings = json.loads(sys.argv[1])
    find_package()
    module = importlib.import_module(f"peer_bench.{settings['library']}_library")
    library: Library = module.build(settings)
    say(library.about())
    for line in sys.stdin:
        arguments = json.loads(line)
        call = arguments.pop("call")
        try:
            found = getattr(library, call)(**arguments)
        except Exception as error:
            say({"error": f"{type(error).__name__}: {error}"})
            continue
        say(asdict(found) if is_dataclass(found) else {"result": found})


if __name__ == "__main__":
    main()

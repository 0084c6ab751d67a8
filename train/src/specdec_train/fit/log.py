"""The log of a run: one JSON object a line in log.jsonl, which a resumed run cuts back to where it goes on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from specdec_train.replacing import replace_file

NAME: Final = "log.jsonl"


class Log:
    """Lines {"ids", "step", "loss", "agreement", "seconds", "lr"}.

    ids        trained on so far
    step       of the optimizer so far
    loss       mean since the line before, None in the first
    agreement  by depth on held-out texts, None where it was not measured
    seconds    of training so far, those of runs that were killed not counted twice
    lr         learning rate of the last step
    """

    def __init__(self, folder: Path, ids: int | None) -> None:
        """Keep the lines up to so many ids, none for None."""
        self._file = folder / NAME
        kept = [] if ids is None else [line for line in read_log(folder) if line["ids"] <= ids]
        text = "".join(json.dumps(line) + "\n" for line in kept)
        replace_file(self._file, lambda new: new.write_text(text, encoding="utf-8"))

    def add(self, **values: float | Sequence[float] | None) -> None:
        """Append a line."""
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's log; one that was cut off is left out."""
    file = folder / NAME
    found = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found

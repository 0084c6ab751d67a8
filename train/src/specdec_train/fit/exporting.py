"""The head of a run, as it was measured last, put into another folder; how it is written is the trainer's."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

from specdec_core.errors import RequestError
from specdec_train.fit.files import EXPORT
from specdec_train.replacing import replace_file

FILES = ("model.safetensors", "config.json")


def export_run(run: Path, out: Path) -> None:
    """Copy config.json and model.safetensors of a run's head; raises RequestError for a run that has none yet."""
    missing = [name for name in FILES if not (run / EXPORT / name).is_file()]
    if missing:
        message = f"{run} has no {EXPORT}/{missing[0]}: it is no run of `specdec train fit`, or has only just begun"
        raise RequestError(message)
    out.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        replace_file(out / name, partial(shutil.copyfile, run / EXPORT / name))

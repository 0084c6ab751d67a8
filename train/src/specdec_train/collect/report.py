"""What a collection has, by task, and what it will have: the lines that the command prints."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from statistics import fmean
from typing import Final

from specdec_train.collect.plan import open_jobs, starters
from specdec_train.collect.prompts import Prompter
from specdec_train.collect.settings import Limits, Settings
from specdec_train.collect.starters.tasks import Pool
from specdec_train.data import Data, Manifest

STATE_BYTES: Final = 2  # of a bfloat16 number
ID_BYTES: Final = 4


def bytes_of_id(manifest: Manifest) -> int:
    """Return what an id takes on disk: the last state and the aux states, and the id itself."""
    return ID_BYTES + STATE_BYTES * manifest.hidden_size * (1 + len(manifest.aux_layers))


def by_task(data: Data) -> Iterator[str]:
    """Yield a line for each task: requests, ids of prompts and of answers, the share of all ids."""
    every = [*data.requests(), *data.requests(held_out=True)]
    total = max(sum(len(request) for request in every), 1)
    yield f"{'task':<12} {'requests':>9} {'prompt ids':>11} {'answer ids':>11} {'share':>7}"
    for task in data.manifest.tasks:
        found = [request for request in every if request.task == task]
        if found:
            prompt = sum(request.prompt for request in found)
            answer = sum(len(request) for request in found) - prompt
            share = (prompt + answer) / total
            yield f"{task:<12} {len(found):>9,} {prompt:>11,} {answer:>11,} {share:>7.1%}"
    held_out = data.requests(held_out=True)
    yield (
        f"{len(every):,} requests, {total:,} ids, of which {len(held_out):,} requests with "
        f"{sum(len(request) for request in held_out):,} ids are held out"
    )


def forecast(manifest: Manifest, settings: Settings, limits: Limits, prompter: Prompter) -> Iterator[str]:
    """Yield what would be collected: lengths of the prompts of a first shard by task, and bytes on disk."""
    found = starters(settings, 0, Pool(), chats=prompter.chats)
    lengths: dict[str, list[int]] = defaultdict(list)
    for starter in found:
        if starter.question is not None:
            lengths[starter.task].append(len(prompter.ids(starter.messages)))
    for each in open_jobs(settings, 0, found, prompter):
        lengths[found[each.index].task].append(len(each.job.prompt) + 24)  # a question of usual length
    yield f"{'task':<12} {'requests':>9} {'ids of a prompt':>16} {'longest':>8}"
    for task in sorted(lengths, key=lambda task: -len(lengths[task])):
        yield f"{task:<12} {len(lengths[task]):>9} {fmean(lengths[task]):>16.0f} {max(lengths[task]):>8}"
    size = bytes_of_id(manifest)
    yield f"states: the last one and those after layers {', '.join(map(str, manifest.aux_layers)) or 'none'}"
    yield f"an id takes {size:,} bytes; a shard has {settings.shard_requests} requests"
    if limits.ids is not None:
        yield f"{limits.ids:,} ids take {limits.ids * size / 1e9:.3g} GB"

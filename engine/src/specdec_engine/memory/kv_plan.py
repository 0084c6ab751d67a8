"""How many positions the KV arena holds, and what that number was made from."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from typing import Final

import torch

from specdec_core.config.speculative import ResolvedConfig
from specdec_core.errors import ConfigError, TargetError
from specdec_core.sources import TargetInfo
from specdec_engine.memory.room import Room, host_room
from specdec_nn.cache.arena import PAGE_SIZE

# Of what is left for caches; as much again is for the drafter's, and the rest for the work of a step.
MEMORY_SHARE: Final = 0.4
MIB: Final = 2**20

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class States:
    """Recurrent states of a target: for `requests` at one time, `each` bytes; what may be taken back is counted."""

    requests: int
    each: int

    @property
    def bytes(self) -> int:
        """Bytes of all requests."""
        return self.requests * self.each

    @property
    def beside(self) -> str:
        """What stands beside the positions, in words; nothing where no layer keeps states."""
        return f" and recurrent states of {self.requests} requests, {self.each:,} bytes each" if self.each else ""


NO_STATES: Final = States(0, 0)


def plan(
    wanted: int | None,
    most: int,
    bytes_per_token: int,
    device: torch.device,
    coming: int,
    utilization: float | None = None,
    states: States = NO_STATES,
) -> int:
    """Return the positions of the KV arena, and log once what they follow from.

    wanted           what the caller set; None: from free memory
    most             positions that all requests could ever hold
    bytes_per_token  of the target's keys and values over all layers, and of what is kept beside them
    coming           weights of a drafter that is still to be loaded
    utilization      the share of a GPU's memory that may be in use at all; None: no bound
    states           recurrent states, which take their room before positions do

    Raises TargetError if not even one page of positions fits and the caller set none.
    """
    room = device_room(device)
    free = max(0, room.free - coming)
    fits = int((arena_bytes(free, device, utilization) - states.bytes) / max(bytes_per_token, 1))
    tokens = min(most, fits) if wanted is None else wanted
    if wanted is None and tokens < min(most, PAGE_SIZE):
        message = (
            f"no memory is left for the KV cache: {free / MIB:.0f} MiB by {room.bound}, where {PAGE_SIZE} positions of "
            f"{bytes_per_token:,} bytes each{states.beside} may take {MEMORY_SHARE:.0%} of it; raise the limit, or set "
            f"{'a smaller max_num_seqs' if states.bytes else 'kv_cache_tokens'}"
        )
        raise TargetError(message)
    needed = tokens * bytes_per_token + states.bytes
    logger.info(
        "KV cache: %d positions of %d bytes%s (%.1f MiB), %s; free: %.1f MiB by %s%s",
        tokens,
        bytes_per_token,
        states.beside,
        needed / MIB,
        _reason(wanted, most, fits),
        free / MIB,
        room.bound,
        f", less {coming / MIB:.1f} MiB for the drafter's weights" if coming else "",
    )
    if needed > free:
        message = "kv_cache_tokens=%d takes %.1f MiB when full, more than the %.1f MiB that are free by %s"
        logger.warning(message, tokens, needed / MIB, free / MIB, room.bound)
    return tokens


def replan(tokens: int, bytes_per_token: int, device: torch.device, states: States = NO_STATES) -> int:
    """Return fewer positions, with a log line, if the drafter as loaded has left less memory than was planned with.

    The size of its files does not tell all: weights may be unpacked, or come in another dtype.
    """
    room = device_room(device)
    fits = max(PAGE_SIZE, int((MEMORY_SHARE * room.free - states.bytes) / max(bytes_per_token, 1)))
    if fits >= tokens:
        return tokens
    message = "KV cache: %d positions, not %d: with the drafter loaded, %.1f MiB are free by %s"
    logger.info(message, fits, tokens, room.free / MIB, room.bound)
    return fits


def arena_bytes(free: float, device: torch.device, utilization: float | None) -> float:
    """Return the bytes for the KV arena: a share of what is free, and on a GPU what the caller's bound leaves.

    Raises TargetError if the bound leaves nothing.
    """
    room = MEMORY_SHARE * free
    if utilization is None or device.type != "cuda":
        return room
    unused, total = torch.cuda.mem_get_info(device)
    left = utilization * total - (total - unused)
    if left <= 0:
        message = (
            f"gpu_memory_utilization={utilization} leaves no room for the KV arena: "
            f"{(total - unused) / 2**30:.1f} of {total / 2**30:.1f} GiB are in use after loading; give a larger share"
        )
        raise TargetError(message)
    return min(room, left)


def _reason(wanted: int | None, most: int, fits: int) -> str:
    if wanted is not None:
        return "as kv_cache_tokens sets it"
    if most <= fits:
        return "which is max_num_seqs times max_model_len"
    return f"which is {MEMORY_SHARE:.0%} of free memory"


def device_room(device: torch.device) -> Room:
    """Return the bytes that are free on a device."""
    if device.type == "cuda":
        return Room(free=int(torch.cuda.mem_get_info(device)[0]), bound=f"the memory of {device}")
    return host_room()


def kept_row_bytes(resolved: ResolvedConfig | None, info: TargetInfo, dtype: torch.dtype) -> int:
    """Return the bytes for each position of the states that are kept so that prefix reuse leaves a proposer no gap."""
    if resolved is None or resolved.traits.rows != "all":
        return 0
    states = int(resolved.traits.hidden) + len(resolved.traits.aux_layers)
    return states * info.hidden_size * dtype.itemsize


def draft_bytes(resolved: ResolvedConfig | None, info: TargetInfo) -> int:
    """Return the bytes that a drafter's weights will take, by its files; 0 where it lives in the target's."""
    size = 0
    for draft in () if resolved is None else resolved.drafts:
        if draft.model == info.model:
            continue
        with contextlib.suppress(ConfigError, OSError):  # what is wrong with the files, their plugin says better
            size += sum(file.stat().st_size for file in draft.weight_files)
    return size

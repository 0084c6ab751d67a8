"""How much memory this process may still use: the host's, a container's and the process's own limits; no torch.

Every reader takes the folder that stands for the root of the file system. A limit that cannot be read is no limit.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

UNKNOWN: Final = 2**31  # assumed where a system tells nothing
NO_LIMIT: Final = 2**60  # cgroup v1 writes "none" as a number near 2**63
USUAL_MOUNTS: Final = {"v2": ("sys/fs/cgroup", "sys/fs/cgroup/unified"), "v1": ("sys/fs/cgroup/memory",)}


@dataclass(frozen=True, kw_only=True)
class Room:
    """Bytes that may still be used, and what says so.

    free    bytes, 0 or more
    bound   the limit that leaves the least, in words for a log
    """

    free: int
    bound: str


def host_room(root: Path = Path("/")) -> Room:
    """Return the smallest room among MemAvailable, the cgroups (v1 and v2) of this process, and RLIMIT_AS.

    File pages that nobody has used lately (`inactive_file`) count as free: the kernel drops them first.
    Source: Linux, Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst, and proc(5).
    """
    rooms = [room for room in (_available(root), *_cgroups(root), _address_space(root)) if room is not None]
    return min(rooms, key=lambda room: room.free, default=Room(free=UNKNOWN, bound="an assumption: nothing tells"))


def _available(root: Path) -> Room | None:
    kilobytes = _fields(root / "proc/meminfo").get("MemAvailable:")
    return None if kilobytes is None else Room(free=1024 * kilobytes, bound="MemAvailable of the host")


def _address_space(root: Path) -> Room | None:
    """Return what RLIMIT_AS leaves of this process's addresses."""
    try:
        import resource  # of Unix alone

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        pages = int((_read(root / "proc/self/statm") or "0").split()[0])
    except (ImportError, OSError, ValueError, IndexError):
        return None
    if limit == resource.RLIM_INFINITY:
        return None
    used = pages * os.sysconf("SC_PAGE_SIZE")
    return Room(free=max(0, limit - used), bound=f"RLIMIT_AS of {limit:,} bytes, {used:,} of them in use")


def _cgroups(root: Path) -> Iterator[Room]:
    """Yield the room in every cgroup that this process is in, from its own up to the mount point."""
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            version = "v2"
        elif "memory" in controllers.split(","):
            version = "v1"
        else:
            continue
        for folder in _folders(root, version, path):
            room = (_room_v2 if version == "v2" else _room_v1)(folder)
            if room is not None:
                yield room


def _folders(root: Path, version: str, path: str) -> Iterator[Path]:
    """Yield the folders of a cgroup and of those above it.

    Inside a container the path may be one of the host that is not visible here; then the mount point is the container's
    own cgroup. `..` stands for what a namespace hides.
    """
    for mount_root, mount in _mounts(root, version):
        parts = PurePosixPath(path).parts[1:]
        hidden = PurePosixPath(mount_root).parts[1:]
        if hidden and parts[: len(hidden)] == hidden:
            parts = parts[len(hidden) :]
        parts = () if ".." in parts else parts
        for length in range(len(parts), -1, -1):
            yield mount.joinpath(*parts[:length])


def _mounts(root: Path, version: str) -> list[tuple[str, Path]]:
    """Return (root within the hierarchy, mount point) of each mount of the memory hierarchy of that version."""
    found = []
    for line in (_read(root / "proc/self/mountinfo") or "").splitlines():
        before, dash, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if not dash or len(fields) < 5 or len(kind) < 3:
            continue
        if (version == "v2" and kind[0] == "cgroup2") or (
            version == "v1" and kind[0] == "cgroup" and "memory" in kind[2].split(",")
        ):
            found.append((fields[3], root / fields[4].lstrip("/")))
    return found or [("/", root / place) for place in USUAL_MOUNTS[version]]


def _room_v2(folder: Path) -> Room | None:
    limits = [(value, name) for name in ("memory.max", "memory.high") if (value := _number(folder / name)) is not None]
    used = _number(folder / "memory.current")
    if not limits or used is None:
        return None
    return _room(*min(limits), folder, used, _fields(folder / "memory.stat").get("inactive_file", 0))


def _room_v1(folder: Path) -> Room | None:
    stat = _fields(folder / "memory.stat")
    own = _number(folder / "memory.limit_in_bytes")
    limits = [(value, name) for value, name in ((own, "memory.limit_in_bytes"),) if value is not None]
    if "hierarchical_memory_limit" in stat:  # of groups above, which may be hidden from here
        limits.append((stat["hierarchical_memory_limit"], "hierarchical_memory_limit"))
    used = _number(folder / "memory.usage_in_bytes")
    if not limits or used is None or min(limits)[0] >= NO_LIMIT:
        return None
    return _room(*min(limits), folder, used, stat.get("total_inactive_file", stat.get("inactive_file", 0)))


def _room(limit: int, name: str, folder: Path, used: int, inactive: int) -> Room:
    busy = max(0, used - inactive)
    return Room(free=max(0, limit - busy), bound=f"{name} of {limit:,} bytes in {folder}, {busy:,} of them in use")


def _read(file: Path) -> str | None:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError):
        return None


def _number(file: Path) -> int | None:
    """Return the number in a file, None for "max" and for anything else."""
    text = (_read(file) or "").strip()
    return int(text) if text.isdecimal() else None


def _fields(file: Path) -> dict[str, int]:
    """Return the lines `name number ...` of a file."""
    rows = [line.split() for line in (_read(file) or "").splitlines()]
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdecimal()}

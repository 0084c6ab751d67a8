"""Finds the best installed kernel for an op and a device; imports a backend only when it is asked for."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from specdec_core.errors import ConfigError, ConflictError, PluginError, UnknownNameError
from specdec_core.registry.catalog import Catalog, Record
from specdec_core.registry.importing import import_object
from specdec_core.registry.installed import KERNEL_DISTRIBUTION, normalize

ENVIRONMENT: Final = "SPECDEC_KERNELS"
INTERPRETER: Final = "TRITON_INTERPRET"
REFERENCE: Final = "reference"
TRITON: Final = "triton"
ORDER: Final[dict[str, tuple[str, ...]]] = {"cuda": (TRITON, REFERENCE), "cpu": ("numba", REFERENCE)}
OTHER_DEVICES: Final = (REFERENCE,)
BUILT_IN: Final = (TRITON, "numba", REFERENCE)
PRIORITY: Final = 100  # of a kernel that declares what it supports and names none
BUILT_IN_PRIORITY: Final = 50  # of the device's fast backend; the reference has 0

logger = logging.getLogger(__name__)


class Kernels:
    """Kernels that specdec-nn and chosen distributions offer as entry points named `op.backend`.

    A backend of another name tells by itself where it runs: its callable has `supports(device: str) -> bool`, asked
    with the type of the device ("cpu", "cuda", "xpu"), and may have `priority: int`, 100 if it has none. The device's
    own fast backend has 50 and the reference 0; the highest priority is taken. Without `supports` it is taken only
    where `SPECDEC_KERNELS` names it.

    `SPECDEC_KERNELS` (one backend or a comma list, in order of preference) replaces the order of the device;
    `reference` is the definition of every op and stands last in any case. On a CPU, `triton` needs its interpreter:
    TRITON_INTERPRET=1.
    """

    def __init__(self, catalog: Catalog, distributions: Iterable[str] = ()) -> None:
        """Look among specdec-nn and `distributions` in the catalog; nothing is imported."""
        self._catalog: Final = catalog
        self._distributions: Final = {KERNEL_DISTRIBUTION, *map(normalize, distributions)}
        self._found: Final[dict[tuple[str, str, str, str], tuple[str, Callable[..., Any]]]] = {}
        self._failed: Final[set[Record]] = set()

    def add(self, distribution: str) -> None:
        """Look among a further distribution's kernels too."""
        name = normalize(distribution)
        if name not in self._distributions:
            self._distributions.add(name)
            self._found.clear()

    @property
    def distributions(self) -> tuple[str, ...]:
        """The distributions looked among, sorted, in normal form."""
        return tuple(sorted(self._distributions))

    @property
    def ops(self) -> dict[str, tuple[str, ...]]:
        """Names of the ops that can be had, each with its backends."""
        ops: dict[str, set[str]] = {}
        for record in self._records():
            op, _, backend = record.name.rpartition(".")
            ops.setdefault(op, set()).add(backend)
        return {op: tuple(sorted(backends)) for op, backends in sorted(ops.items())}

    def get(self, op: str, device: object = "cpu") -> Callable[..., Any]:
        """Return the best kernel of an op for a device ("cuda", "cpu:0", a torch.device).

        A backend that cannot be imported is passed over, logged once with the reason. Raises UnknownNameError listing
        the ops, ConflictError for two claims of one op and backend, ConfigError for a bad `SPECDEC_KERNELS` or for a
        setting that a backend refuses (`SPECDEC_CPU`), and the import error of the last candidate if none can be had.
        """
        return self._choose(op, device)[1]

    def backend(self, op: str, device: object = "cpu") -> str:
        """Return the name of the backend that `get` takes; raises what `get` raises."""
        return self._choose(op, device)[0]

    def _choose(self, op: str, device: object) -> tuple[str, Callable[..., Any]]:
        kind = str(device).partition(":")[0]
        forced = os.environ.get(ENVIRONMENT, "")
        key = (op, kind, forced, os.environ.get(INTERPRETER, ""))
        if key not in self._found:
            self._found[key] = self._import_first(op, kind, self._order(op, kind, forced))
        return self._found[key]

    def _records(self) -> Iterator[Record]:
        for record in self._catalog.of_kind("kernel"):
            if record.status in ("ok", "conflict") and normalize(record.distribution) in self._distributions:
                yield record

    def _order(self, op: str, device: str, forced: str) -> tuple[str, ...]:
        """Return the backends of the op in order of preference."""
        ops = self.ops
        if op not in ops:
            listed = ", ".join(ops) or "none"
            message = f"no kernel for the op {op!r} among {', '.join(self.distributions)}; there are: {listed}"
            raise UnknownNameError(message, "kernel", op, tuple(ops))
        wanted = self._by_priority(op, device, ops[op])
        if forced:
            wanted = (*_forced(forced, device, ops), REFERENCE)
        order = tuple(backend for backend in dict.fromkeys(wanted) if backend in ops[op])
        if not order:
            message = f"the op {op!r} has no backend for {device}: wanted {', '.join(wanted)}, got {', '.join(ops[op])}"
            raise ConfigError(message)
        return order

    def _by_priority(self, op: str, device: str, backends: Iterable[str]) -> tuple[str, ...]:
        """Return built-in backends in the order of the device, and others where their priority puts them."""
        ranked = {
            backend: 0 if backend == REFERENCE else BUILT_IN_PRIORITY for backend in ORDER.get(device, OTHER_DEVICES)
        }
        for backend in backends:
            rank = None if backend in BUILT_IN else self._priority(op, device, backend)
            if rank is not None:
                ranked[backend] = rank
        return tuple(sorted(ranked, key=lambda backend: -ranked[backend]))

    def _priority(self, op: str, device: str, backend: str) -> int | None:
        """Return the priority of a backend that is not built in; None where it does not support the device."""
        record = self._claim(op, backend)
        try:
            kernel = import_object(record)
            supports = getattr(kernel, "supports", None)
            if supports is not None and not callable(supports):
                message = f"its attribute 'supports' is of type {type(supports).__name__}, not a function of the device"
                raise TypeError(message)
            if supports is None or not supports(device):
                return None
            return int(getattr(kernel, "priority", PRIORITY))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._log_failure(record, op, device, backend, error)
            return None

    def _log_failure(self, record: Record, op: str, device: str, backend: str, error: BaseException) -> None:
        if record not in self._failed:
            self._failed.add(record)
            logger.warning("%s on %s cannot use %s: %s", op, device, backend, error)

    def _import_first(self, op: str, device: str, order: tuple[str, ...]) -> tuple[str, Callable[..., Any]]:
        failure: PluginError | None = None
        for backend in order:
            record = self._claim(op, backend)
            try:
                kernel: Callable[..., Any] = import_object(record)
            except PluginError as error:
                if isinstance(error.__cause__, ConfigError):  # a setting that it refuses
                    raise error.__cause__ from error
                failure = error
                self._log_failure(record, op, device, backend, error)
                continue
            return backend, kernel
        if failure is None:
            raise AssertionError(order)
        raise failure

    def _claim(self, op: str, backend: str) -> Record:
        name = f"{op}.{backend}"
        claims = [record for record in self._records() if record.name == name]
        if len({record.value for record in claims}) > 1:
            both = " and ".join(f"{record.distribution} ({record.value})" for record in claims)
            message = f"kernel {name!r} is claimed by {both}; choose by leaving one of them out of `kernels`"
            raise ConflictError(message, claims)
        claim = claims[0]
        return Record(claim.kind, claim.name, claim.value, claim.distribution, claim.version)


def can_be_chosen(record: Record) -> bool:
    """Return whether a kernel may be chosen without `SPECDEC_KERNELS`; imports one of a name that is not built in."""
    backend = record.name.rpartition(".")[2]
    return backend in BUILT_IN or callable(getattr(import_object(record), "supports", None))


def _forced(text: str, device: str, ops: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Read `SPECDEC_KERNELS`; raises ConfigError for a backend that nobody offers or that cannot run here."""
    wanted = tuple(part.strip() for part in text.split(",") if part.strip())
    known = {*(backend for backends in ops.values() for backend in backends), TRITON, "numba", REFERENCE}
    for backend in wanted:
        if backend not in known:
            message = f"{ENVIRONMENT}={text!r}: no backend {backend!r}; there are {', '.join(sorted(known))}"
            raise ConfigError(message)
    if TRITON in wanted and device == "cpu" and os.environ.get(INTERPRETER) != "1":
        message = f"{ENVIRONMENT}={text!r}: on a CPU triton runs only in its interpreter; set {INTERPRETER}=1 too"
        raise ConfigError(message)
    return wanted

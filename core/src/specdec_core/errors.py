"""Every error that specdec raises on purpose; each reports what was given, what was expected, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from specdec_core.registry.record import Record


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that is wrong: the key it is about, what was given, what was expected, what to do.

    `drafter_only` means that it holds against the plugin's own drafter alone: a host that has the method by itself may
    go on, with the rest of what the plugin gives.
    """

    key: str
    message: str
    next_step: str = ""
    drafter_only: bool = False

    def __str__(self) -> str:
        """Return one line for an error message."""
        return f"{self.key}: {self.message}" + (f" ({self.next_step})" if self.next_step else "")


class SpecdecError(Exception):
    """Base class of all errors of specdec."""


class SpecdecWarning(UserWarning):
    """Base class of all warnings of specdec."""


class PluginWarning(SpecdecWarning):
    """A plugin that was not asked for failed, or an observer failed; the work goes on without it."""


class ConfigWarning(SpecdecWarning):
    """A configuration has something without effect here."""


class DeprecatedNameWarning(SpecdecWarning, FutureWarning):
    """An old name was used; the message names the new one."""


class ConfigError(SpecdecError, ValueError):
    """A configuration that cannot be used; `problems` lists everything that is wrong with it, not only the first."""

    def __init__(self, message: str, problems: Sequence[Problem] = ()) -> None:
        """Keep the problems beside the message."""
        super().__init__(message)
        self.problems = tuple(problems)


class UnknownNameError(ConfigError):
    """No installed distribution offers a thing of this kind and name."""

    def __init__(self, message: str, kind: str, name: str, installed: Sequence[str]) -> None:
        """Keep the kind, the name asked for and the names that are installed."""
        super().__init__(message)
        self.kind = kind
        self.name = name
        self.installed = tuple(installed)

    def __reduce__(self) -> tuple[Any, ...]:
        """Survive the way from a worker process."""
        return type(self), (str(self), self.kind, self.name, self.installed)


class ConflictError(ConfigError):
    """Two distributions claim one name; `records` holds both."""

    def __init__(self, message: str, records: Sequence[Record]) -> None:
        """Keep the records."""
        super().__init__(message)
        self.records = tuple(records)

    def __reduce__(self) -> tuple[Any, ...]:
        """Survive the way from a worker process."""
        return type(self), (str(self), self.records)


class PluginError(SpecdecError):
    """A plugin failed at a stage of loading; `record` is the plugin's, `__cause__` the reason."""

    stage: ClassVar[str] = "load"

    def __init__(self, record: Record, problem: str, next_step: str) -> None:
        """Compose one message from record, stage, problem and next step."""
        where = f"{record.kind} {record.name!r} of {record.distribution} {record.version} ({record.value})"
        super().__init__(f"{where} failed at stage {self.stage!r}: {problem.rstrip('.')}. {next_step}".rstrip())
        self.record = record
        self.problem = problem
        self.next_step = next_step

    def __reduce__(self) -> tuple[Any, ...]:
        """Survive the way from a worker process; the cause stays behind."""
        return type(self), (self.record, self.problem, self.next_step)


class MetadataStageError(PluginError):
    """The entry point itself cannot be used, e.g. its value does not parse."""

    stage = "metadata"


class VersionStageError(PluginError):
    """The plugin was made for another version of the core or of the hook API."""

    stage = "version"


class ImportStageError(PluginError):
    """The plugin's module raised while being imported, or lacks the object it names."""

    stage = "import"


class RegisterStageError(PluginError):
    """The plugin's hooks do not fit the hook specifications."""

    stage = "register"


class OptionsStageError(PluginError):
    """The options hook failed or returned something that is no options model."""

    stage = "options"


class TraitsStageError(PluginError):
    """The traits hook failed or returned something that is no `MethodTraits`."""

    stage = "traits"


class CheckStageError(PluginError):
    """The detect, override, defaults or check hook failed."""

    stage = "check"


class MakeStageError(PluginError):
    """The make hook failed or returned an object that does not follow its protocol."""

    stage = "make"


class PluginCallError(SpecdecError):
    """An object that a plugin built tried to end the process in a call of the host; `__cause__` is what it raised."""

    def __init__(self, who: str, call: str, error: BaseException) -> None:
        """Name the plugin in words, what was called, and what it raised."""
        said = f"{type(error).__name__}{f': {error}' if str(error) else ''}"
        super().__init__(f"{who} raised {said} in {call}; only the host may end. Tell the authors of the plugin.")
        self.who = who
        self.call = call
        self._error = error

    def __reduce__(self) -> tuple[Any, ...]:
        """Survive the way from a worker process."""
        return type(self), (self.who, self.call, self._error)


class ContractError(SpecdecError):
    """A proposer returned a draft that breaks the contract of `Draft`."""


class RequestError(SpecdecError, ValueError):
    """A request that cannot be served: prompt, sampling parameters or request options."""


class TargetError(SpecdecError):
    """A language model, a target or a draft, that cannot be loaded or would be run wrongly; with the reason."""

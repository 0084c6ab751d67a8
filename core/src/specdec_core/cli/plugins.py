"""`specdec plugins show` and `doctor`: what one plugin or draft offers, and whether each of them loads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from pydantic_core import PydanticUndefined

from specdec_core.cli.doctor import Examination, examine_all
from specdec_core.cli.listing import print_table
from specdec_core.cli.output import emit
from specdec_core.config.options import OPTIONS_HOOKS, MethodOptions, options_model, request_model
from specdec_core.errors import PluginError, UnknownNameError
from specdec_core.registry.catalog import LOCAL_DISTRIBUTION, LOCAL_KINDS, Catalog, Record
from specdec_core.registry.homes import nearest_name
from specdec_core.registry.installed import normalize
from specdec_core.registry.loaded import LoadedPlugin
from specdec_core.registry.loader import Registry
from specdec_core.sources import TargetInfo

_OF_DRAFTS: Final = ("about", "target", "method", "num_speculative_tokens", "folder", "architectures", "weights_bytes")
SLOW: Final = 0.5  # seconds of an import that are worth a word in the table
PLACEHOLDER: Final = TargetInfo(
    model=None, hf_config={}, vocab_size=32000, hidden_size=2048, num_layers=16, max_model_len=4096
)


def show(catalog: Catalog, name: str, as_json: bool) -> None:
    """Print everything about a name; raises UnknownNameError, or the PluginError of what does not load."""
    failure: PluginError | None = None
    shown = []
    for record in _matching(catalog, name):
        data: dict[str, Any] = record.as_json()
        if record.kind in (*LOCAL_KINDS, "draft"):
            try:
                data.update(_describe_draft(record) if record.kind == "draft" else _describe(catalog, record))
            except PluginError as error:
                failure, data["error"] = error, str(error)
        data["entry_points"] = _entry_points(catalog, record)
        shown.append(data)
    if as_json:
        emit(json.dumps(shown, indent=1, default=str))
    else:
        for data in shown:
            _print_plugin(data)
    if failure is not None:
        raise failure


def doctor(catalog: Catalog, names: Sequence[str], timeout: float, as_json: bool) -> int:
    """Examine every plugin, or those named, each in a process of its own; return 1 if one of them failed."""
    records = _all_records(catalog)
    if names:
        records = [record for name in names for record in _matching(catalog, name)]
    results = examine_all(records, catalog, timeout)
    if as_json:
        emit(json.dumps([result.as_json() for result in results], indent=1))
    else:
        print_table(("name", "kind", "distribution", "stage", "result"), (_row(result) for result in results))
    return int(any(result.state == "failed" for result in results))


def _row(result: Examination) -> tuple[str, ...]:
    record = result.record
    distribution = f"{record.distribution} {record.version}"
    said = "ok" if result.state == "ok" else f"{result.state}: {result.problem} {result.next_step}".rstrip()
    notes = "".join(f"; {note}" for note in result.notes)
    slow = f"; imported in {result.import_seconds:.2f} s" if (result.import_seconds or 0.0) > SLOW else ""
    return record.name, record.kind, distribution, result.stage, " ".join(f"{said}{notes}{slow}".split())


def _all_records(catalog: Catalog) -> list[Record]:
    local = [record for record in catalog.of_kind("proposer") if record.distribution == LOCAL_DISTRIBUTION]
    return [*local, *catalog.records]


def _matching(catalog: Catalog, name: str) -> list[Record]:
    """Return the records that a name or `distribution:name` means, of whatever kind."""
    distribution, _, bare = name.rpartition(":")
    records = _all_records(catalog)
    wanted = normalize(distribution)
    found = [r for r in records if r.name == bare and (not wanted or normalize(r.distribution) == wanted)]
    if found:
        return found
    names = sorted({record.name for record in records})
    close = nearest_name(bare, names)
    hint = f"; did you mean {close!r}?" if close else ""
    message = f"nothing named {name!r} is installed{hint or ';'} there are: {', '.join(names) or 'no plugins'}"
    raise UnknownNameError(message, "plugin", name, names)


def _describe(catalog: Catalog, record: Record) -> dict[str, Any]:
    """Load a plugin and return hooks, options and traits as plain data."""
    registry = Registry(catalog)
    plugin = _load(registry, record)
    model = options_model(registry, plugin, OPTIONS_HOOKS[record.kind])
    data = {"hooks": sorted(plugin.hooks), "options": _fields(model)}
    if record.kind == "proposer":
        request = request_model(registry, plugin)
        data["request_options"] = _fields(request) if request else []
        data["traits"] = _traits(registry, plugin, model)
    data["expected_failures"] = dict(registry.call(plugin, "specdec_expected_failures", method=plugin.name) or {})
    return data


def _describe_draft(record: Record) -> dict[str, Any]:
    """Return where a draft's files are and what is in its card and config.json, as plain data; imports nothing."""
    from specdec_core.registry.drafts import look_at
    from specdec_core.sources import DraftSource

    folder, card = look_at(record)
    source = DraftSource(folder)
    size = sum(file.stat().st_size for file in source.weight_files)
    found = {"folder": str(folder), "architectures": list(source.architectures), "weights_bytes": size}
    return {**asdict(card), **found}


def _load(registry: Registry, record: Record) -> LoadedPlugin:
    """Load a record; an unpackaged plugin is looked at as whatever it turns out to be."""
    if record.status == "conflict":  # asked about, not used: each claimant is shown
        record = Record(record.kind, record.name, record.value, record.distribution, record.version)
    if record.distribution != LOCAL_DISTRIBUTION:
        return registry.load(record)
    failures = []
    for kind in LOCAL_KINDS:
        try:
            return registry.load(registry.catalog.find(kind, record.name))
        except PluginError as error:
            failures.append(error)
    raise failures[0]


def _fields(model: type[Any]) -> list[dict[str, Any]]:
    fields = []
    for name, field in model.model_fields.items():
        default = "required" if field.is_required() else field.get_default(call_default_factory=True)
        annotation = field.annotation
        kind = annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")
        shown = None if default is PydanticUndefined else default
        fields.append({"name": name, "type": kind, "default": shown, "description": field.description})
    return fields


def _traits(registry: Registry, plugin: LoadedPlugin, model: type[MethodOptions]) -> dict[str, Any] | str:
    """Return the traits under default options for a placeholder target, or why they need a real one."""
    from specdec_core.config.speculative import SpeculativeConfig
    from specdec_core.context import MethodContext
    from specdec_core.traits import MethodTraits

    try:
        config = SpeculativeConfig(method=plugin.name)
        ctx = MethodContext(method=plugin.name, config=config, options=model(), draft=None, target=PLACEHOLDER)
        traits = registry.call(plugin, "specdec_method_traits", stage="traits", ctx=ctx)
        return asdict(traits if traits is not None else MethodTraits())
    except Exception as error:  # the hook may need a checkpoint that is not here; that is no fault
        return f"depend on draft and target ({type(error).__name__}); see `specdec explain`"


def _entry_points(catalog: Catalog, record: Record) -> list[str]:
    return [f"{r.kind} {r.name} = {r.value}" for r in catalog.records if r.distribution == record.distribution]


def _print_plugin(data: dict[str, Any]) -> None:
    keys = ("name", "kind", "distribution", "version", "status", "reason", "value", "error", *_OF_DRAFTS)
    print_table(("what", "is"), [(key, data[key]) for key in keys if key in data])
    if "hooks" in data:
        print("\nhooks:", ", ".join(data["hooks"]) or "none")
    for title in ("options", "request_options"):
        if data.get(title):
            print(f"\n{title.replace('_', ' ')}:")
            columns = ("name", "type", "default", "description")
            print_table(columns, [[field[column] for column in columns] for field in data[title]])
    traits = data.get("traits")
    if isinstance(traits, dict):
        print("\ntraits (default options, a placeholder target):")
        print(", ".join(f"{key}={value}" for key, value in traits.items()))
    elif traits:
        print(f"\ntraits {traits}")
    if data.get("expected_failures"):
        print("\nchecks of the conformance kit that it is not meant to pass:")
        print_table(("check", "reason"), data["expected_failures"].items())
    print("\nentry points:", *(data["entry_points"] or ["none"]), sep="\n  ")
    print()

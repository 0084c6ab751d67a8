"""The typer application behind `specdec`: options and help texts; knows nothing of what the commands do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

import specdec_core
from specdec_core.cli import explain as cli_explain
from specdec_core.cli import new as cli_new
from specdec_core.cli import plugins as cli_plugins
from specdec_core.cli.listing import list_plugins
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.tried import warn_if_newer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Local = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin", metavar="NAME=PATH", help="Use an unpackaged plugin, e.g. mine=./mine.py. May be repeated."
    ),
]


def make_app(commands: Sequence[tuple[str, str]]) -> typer.Typer:
    """Return the application; `commands` are names and help texts of other distributions' subcommands."""
    warn_if_newer("typer", "click")
    app = typer.Typer(
        name="specdec",
        help="Speculative decoding as plugins: what is installed, whether it works, and what a configuration means.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    plugins = typer.Typer(help="List, show and check what is installed.", no_args_is_help=True)
    plugins.command("list")(_list)
    plugins.command("show")(_show)
    plugins.command("doctor")(_doctor)
    plugins.command("new")(_new)
    app.add_typer(plugins, name="plugins")
    app.command("explain")(_explain)
    for name, help_text in commands:
        app.command(name, help=help_text)(_elsewhere)
    return app


def local_plugins(given: Sequence[str] | None) -> dict[str, str]:
    """Split `NAME=PATH` texts; raises a usage error for one without a name or a path."""
    plugins = {}
    for text in given or ():
        name, equals, path = text.partition("=")
        if not (name and equals and path):
            raise typer.BadParameter(f"{text!r} is not NAME=PATH", param_hint="--plugin")
        plugins[name] = path
    return plugins


def _version(wanted: bool) -> None:
    if wanted:
        print(f"specdec-core {specdec_core.__version__}")
        raise typer.Exit


def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    pass


def _elsewhere() -> None:
    """Stand for a subcommand of another distribution in the help; such commands never come through here."""


def _list(
    everything: Annotated[
        bool, typer.Option("--all", help="Kernels, aliases, extensions and commands as well.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List methods, verifiers and drafts: name, kind, distribution, version, status. Imports no plugin."""
    list_plugins(as_json, everything)


def _show(
    name: Annotated[str, typer.Argument(help="A name from `plugins list --all`, or DISTRIBUTION:NAME.")],
    as_json: AsJson = False,
    plugin: Local = None,
) -> None:
    """Show a plugin's hooks, options, traits and entry points, or where a draft is and what it is for."""
    cli_plugins.show(Catalog.discover().with_local(local_plugins(plugin)), name, as_json)


def _doctor(
    names: Annotated[list[str] | None, typer.Argument(help="Check only these names.")] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds that one plugin may take.")] = 60.0,
    pair: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="TARGET DRAFT", help="Examine a pair instead; as `specdec pair TARGET DRAFT`."),
    ] = None,
    as_json: AsJson = False,
    plugin: Local = None,
) -> None:
    """Load each plugin, stage by stage, in a process of its own. The exit code is 1 if any of them fails."""
    assert pair is None  # `specdec_core.cli.main` has taken it
    catalog = Catalog.discover().with_local(local_plugins(plugin))
    raise typer.Exit(cli_plugins.doctor(catalog, names or [], timeout, as_json))


def _new(
    name: Annotated[str, typer.Argument(help="The method's name, as users will write it: my_method.")],
    kind: Annotated[str, typer.Option(help="lookup (ids only), head (hidden states, a checkpoint), or tree.")],
    path: Annotated[Path, typer.Option(help="The folder in which specdec-plugin-NAME is made.")] = Path(),
) -> None:
    """Write a distribution for a new method: working code of the kind, its tests, README and CI; then change it."""
    cli_new.new(Catalog.discover(), name, kind, path)


def _explain(
    target: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="The target: a folder with config.json, or a hub id.")
    ] = None,
    speculative_config: Annotated[
        str | None,
        typer.Option(
            "--speculative-config",
            "-sc",
            help="JSON with vLLM's keys, or @file.json, or @file.yaml; or -sc.KEY VALUE for single keys.",
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="The target, in place of MODEL.")] = None,
    max_model_len: Annotated[int | None, typer.Option(min=1, help="The host's limit, if below the model's.")] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Take the model's own code as allowed; none is run here.")
    ] = False,
    as_json: AsJson = False,
    plugin: Local = None,
) -> None:
    """Show what a speculative configuration means for a model: method, k, verifier, traits, reasons; no weights."""
    if (target is None) == (model is None):
        raise typer.BadParameter("name the target once: MODEL, or --model MODEL", param_hint="MODEL")
    if speculative_config is None:
        raise typer.BadParameter("it is required", param_hint="--speculative-config")
    catalog = Catalog.discover().with_local(local_plugins(plugin))
    cli_explain.explain(catalog, target or model or "", speculative_config, max_model_len, as_json, trust_remote_code)

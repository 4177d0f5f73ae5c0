"""The `millrace` command. Its parts are imported when they are used, so `--help` stays quick.

Another distribution adds commands with an entry point of the group `millrace.commands`, which names
a table like `COMMANDS`. Millrace's own commands win over added ones of the same name.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Mapping
from typing import Any

import click

from millrace._version import __version__
from millrace.cli.failures import INTERRUPTED

COMMANDS = {
    "autoscale": (
        "millrace.cli.autoscale:autoscale",
        "Show, switch or replay the autoscaling of a query.",
    ),
    "assignment": (
        "millrace.cli.reconfigure:assignment",
        "Show who owns which key groups of a location.",
    ),
    "cancel": ("millrace.cli.reconfigure:cancel", "Withdraw a request to a running query."),
    "drain": ("millrace.cli.reconfigure:drain", "Move everything away from an executor."),
    "export": (
        "millrace.cli.interchange:export_command",
        "Write a location's state to plain files.",
    ),
    "import": ("millrace.cli.interchange:import_command", "Move a state into a new location."),
    "gc": ("millrace.cli.location:gc", "Remove what no retained epoch needs."),
    "mirror": (
        "millrace.cli.mirror:mirror_command",
        "Keep a copy of an operator's state in another store.",
    ),
    "move": ("millrace.cli.reconfigure:move", "Give key groups to an executor."),
    "rescale": (
        "millrace.cli.reconfigure:rescale",
        "Change the number of shards of a running query.",
    ),
    "serve": ("millrace.serve.command:serve", "Answer look-ups in a location's state."),
    "repair": (
        "millrace.cli.location:repair",
        "Rebuild damaged segments, where older epochs allow it.",
    ),
    "check": ("millrace.cli.location:check", "Verify a whole location and report damage."),
    "ui": ("millrace.cli.ui:ui", "Serve the live page of a location."),
    "diff": ("millrace.cli.state:diff", "Show the keys that differ between two epochs."),
    "get": ("millrace.cli.state:get", "Look up a key in a location's state."),
    "keys": ("millrace.cli.state:keys", "List keys of a location's state."),
    "ls": ("millrace.cli.state:ls", "List a location's tables, or the locations in a folder."),
    "show": ("millrace.cli.state:show", "Show what a location holds."),
    "sql": ("millrace.cli.state:sql", "Query a location's state."),
}
"""Name -> (where it is, one line about it)."""

PLUGINS = "millrace.commands"
"""The group of entry points that add commands."""

Table = Mapping[str, tuple[str, str]]


class LazyGroup(click.Group):
    """Commands of a table, and of entry points; each is imported when it is called."""

    def __init__(self, *args: Any, table: Table, plugins: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._own = table
        self._plugins = plugins

    def _all(self) -> Table:
        found: dict[str, tuple[str, str]] = {}
        if self._plugins is not None:
            for entry in importlib.metadata.entry_points(group=self._plugins):
                found |= entry.load()
        return {**found, **self._own}

    def invoke(self, ctx: click.Context) -> object:
        """Ctrl-C ends any command with the shell's code for it, and without a traceback."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._all())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = self._own.get(cmd_name) or self._all().get(cmd_name)
        if found is None:
            return None
        module, name = found[0].split(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in sorted(self._all().items())])


EPILOG = """\b
Examples:
  millrace sql /data/totals "select * from totals limit 5"
  millrace ui /data/totals
  millrace rescale /data/totals --parallelism 4
  millrace check /data/totals

Exit codes: 0 if all went well, 1 if not, 2 for wrong options, 130 after Ctrl-C.
"""


@click.command(
    cls=LazyGroup,
    table=COMMANDS,
    plugins=PLUGINS,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, "-V", "--version", prog_name="millrace")
def main() -> None:
    """Elastic, fast, queryable state for streams on PySpark."""

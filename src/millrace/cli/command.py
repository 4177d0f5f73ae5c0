"""The `millrace` command. Its parts are imported when they are used, so `--help` stays quick."""

from __future__ import annotations

import importlib
import importlib.util

import click

from millrace._version import __version__
from millrace.cli.failures import INTERRUPTED

COMMANDS = {
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
    "move": ("millrace.cli.reconfigure:move", "Give key groups to an executor."),
    "rescale": (
        "millrace.cli.reconfigure:rescale",
        "Change the number of shards of a running query.",
    ),
    "serve": ("millrace.serve.command:serve", "Answer look-ups in a location's state."),
    "bench": ("millrace.cli.bench:bench", "Measure Millrace beside Spark."),
    "repair": (
        "millrace.cli.location:repair",
        "Make damaged segments anew, where older epochs allow it.",
    ),
    "check": ("millrace.cli.location:check", "Read a whole location; say what is damaged."),
    "ui": ("millrace.cli.ui:ui", "Serve the live page of a location."),
    "diff": ("millrace.cli.state:diff", "Show the keys that differ between two epochs."),
    "get": ("millrace.cli.state:get", "Look up a key in a location's state."),
    "keys": ("millrace.cli.state:keys", "List keys of a location's state."),
    "ls": ("millrace.cli.state:ls", "List a location's tables, or the locations in a folder."),
    "show": ("millrace.cli.state:show", "Show what a location holds."),
    "sql": ("millrace.cli.state:sql", "Query a location's state."),
    "soak": (
        "millrace.soak:soak",
        "Disturb a query for a while, then check its state.",
    ),
    "demo": ("millrace.demo:demo", "Watch a stream be rescaled, lose an executor, and stay right."),
}
"""Name -> (where it is, one line about it)."""


class LazyGroup(click.Group):
    """Imports a command when it is called."""

    def invoke(self, ctx: click.Context) -> object:
        """Ctrl-C ends any command with the shell's code for it, and without a traceback."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name][0].split(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])


EPILOG = """\b
Examples:
  millrace demo
  millrace sql /data/totals "select * from totals limit 5"
  millrace ui /data/totals
  millrace rescale /data/totals --parallelism 4
  millrace check /data/totals
  millrace bench throughput --quick
  millrace soak --minutes 30 --seed 1

Exit codes: 0 if all went well, 1 if not, 2 for wrong options, 130 after Ctrl-C.
"""


@click.command(
    cls=LazyGroup, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, "-V", "--version", prog_name="millrace")
def main() -> None:
    """Elastic, fast, queryable state for streams on PySpark."""

"""`python -m millrace_lab COMMAND`: the lab's commands where its entry point is not installed."""

from __future__ import annotations

import click

from millrace.cli.command import LazyGroup
from millrace_lab.commands import COMMANDS


@click.command(cls=LazyGroup, table=COMMANDS)
def main() -> None:
    """Benchmarks, the soak test and the demonstration of Millrace."""


if __name__ == "__main__":
    main(prog_name="millrace")

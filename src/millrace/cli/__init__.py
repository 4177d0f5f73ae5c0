"""The command line: `millrace COMMAND`."""

from millrace.cli.command import main

__all__ = ["main"]

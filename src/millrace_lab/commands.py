"""The lab's commands: a table that the entry point `millrace.commands` adds to `millrace`.

It is loaded for `millrace --help`, so nothing else is imported here.
"""

from __future__ import annotations

COMMANDS = {
    "bench": ("millrace_lab.bench.cli:bench", "Compare Millrace with Spark and other engines."),
    "demo": (
        "millrace_lab.demo:demo",
        "Watch a stream be rescaled, lose an executor, and stay correct.",
    ),
    "soak": (
        "millrace_lab.soak:soak",
        "Disturb a query for a while, then check its state.",
    ),
}
"""Name -> (where it is, one line about it)."""

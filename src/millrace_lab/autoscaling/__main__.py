"""Compare policies in simulation: `python -m millrace_lab.autoscaling [--seeds 100]`."""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.table import Table

from millrace.reconfigure.autoscale.settings import Settings
from millrace_lab.autoscaling.comparing import LATENCY, compare


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--loads", nargs="*", default=None)
    parser.add_argument("--settle", type=float, default=Settings().settle)
    parser.add_argument("--catch-up", type=float, default=Settings().catch_up)
    given = parser.parse_args()
    table = Table(title=f"means of {given.seeds} seeds; rows are late after {LATENCY:g} s")
    for column in ("load", "scaled by", "cost / oracle", "worst", "late", "longest", "changes"):
        table.add_column(column, justify="left" if column in ("load", "scaled by") else "right")
    settings = Settings(max=16, latency=LATENCY, settle=given.settle, catch_up=given.catch_up)
    for row in compare(settings, range(given.seeds), given.loads):
        table.add_row(
            row.load,
            row.scaler,
            f"{row.cost:.2f}",
            f"{row.worst_cost:.2f}",
            f"{row.late:.1%}",
            f"{row.longest:.0f} s",
            f"{row.changes:.1f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()

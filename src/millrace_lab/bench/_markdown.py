"""Tables and numbers of the pages about benchmarks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def number(value: float) -> str:
    if value != 0 and abs(value) < 100 and value != int(value):
        return f"{value:.3g}"
    return f"{value:,.0f}"

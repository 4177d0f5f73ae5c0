"""The table of cases: what must come out the same on both engines, batch by batch."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from tests.spark.unchanged.engines import Case

VISITS = (
    "page string, user string, ms long, cost double, price decimal(10,2), ok boolean, at timestamp"
)
CLICKS = "ad string, who string, shown timestamp"


def _visit(
    page: str | None,
    user: str,
    ms: int | None,
    at: str | None,
    cost: float | None = None,
    price: float | None = None,
    ok: bool | None = None,
) -> dict[str, Any]:
    row = {"page": page, "user": user, "ms": ms, "cost": cost, "price": price, "ok": ok}
    return {**row, "at": None if at is None else f"2024-01-01T{at}Z"}


VISIT_BATCHES = [
    [
        _visit("/", "ann", 12, "12:00:10", 0.5, 1.25, True),
        _visit("/buy", "bob", 30, "12:00:20", 1.5, 9.99, False),
        _visit("/", "ann", 18, "12:00:50", None, None, True),
        _visit(None, "cy", None, "12:01:00", -2.0, 0.01, None),
    ],
    [
        _visit("/", "bob", 7, "12:07:00", 3.25, 2.5, True),
        _visit("/a b", "dee", 5, "12:08:30", 0.25, -3.0, True),
        _visit("/", "ann", 1, None, 1.0, 1.0, False),
    ],
    [
        _visit("/", "eve", 40, "12:21:00", 8.0, 7.0, None),
        _visit("/buy", "bob", 2, "12:05:00", 0.125, 4.5, True),
        _visit("/", "late", 100, "11:00:00", 9.0, 9.0, True),
    ],
    [],
    [
        _visit("/", "late", 5, "12:00:30", 1.0, 1.0, True),
        _visit("/buy", "ann", 11, "12:45:00", 2.0, 6.5, False),
        _visit("/buy", "ann", 11, "12:45:00", 2.0, 6.5, False),
    ],
    [_visit("/", "bob", 3, "13:30:00", 1.75, 3.75, True)],
]

CLICK_BATCHES = [
    [
        {"ad": "/", "who": "x", "shown": "2024-01-01T12:00:00Z"},
        {"ad": "/buy", "who": "y", "shown": "2024-01-01T12:00:20Z"},
    ],
    [
        {"ad": "/", "who": "z", "shown": "2024-01-01T12:06:00Z"},
        {"ad": None, "who": "n", "shown": "2024-01-01T12:06:00Z"},
    ],
    [{"ad": "/none", "who": "q", "shown": "2024-01-01T12:20:00Z"}],
    [{"ad": "/buy", "who": "w", "shown": "2024-01-01T12:44:00Z"}],
    [],
    [{"ad": "/", "who": "v", "shown": "2024-01-01T13:29:00Z"}],
]

_TABLE = Path(__file__).with_name("cases.toml")


def cases() -> list[Case]:
    """All cases, in the order of the table."""
    table = tomllib.loads(_TABLE.read_text())
    return [
        Case(name, program, group["mode"])
        for group in table.values()
        for name, program in group.items()
        if name != "mode"
    ]

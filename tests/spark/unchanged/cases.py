"""The tables of programs, and the rows that they run on, a list for each batch."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.spark.unchanged.engines import Case, Stream

_TABLES = Path(__file__).parent


def _visit(
    page: str | None,
    user: str,
    ms: int | None,
    at: str | None,
    cost: float | None = None,
    price: float | None = None,
    ok: bool | None = None,
    tags: list[str] | None = None,
) -> dict[str, Any]:
    row = {"page": page, "user": user, "ms": ms, "cost": cost, "price": price, "ok": ok}
    return {**row, "at": _time(at), "tags": tags}


def _click(ad: str | None, who: str, shown: str | None) -> dict[str, Any]:
    return {"ad": ad, "who": who, "shown": _time(shown)}


def _order(item: str | None, quantity: int, made: str) -> dict[str, Any]:
    return {"item": item, "quantity": quantity, "made": _time(made)}


def _time(of_day: str | None) -> str | None:
    return None if of_day is None else f"2024-01-01T{of_day}Z"


_NAN = float("nan")

VISITS = Stream(
    "page string, user string, ms long, cost double, price decimal(10,2), ok boolean, "
    "at timestamp, tags array<string>",
    [
        [
            _visit("/", "ann", 12, "12:00:10", 0.5, 1.25, True, ["a", "b"]),
            _visit("/buy", "bob", 30, "12:00:20", 1.5, 9.99, False, ["b"]),
            _visit("/", "ann", 18, "12:00:50", None, None, True, []),
            _visit(None, "cy", None, "12:01:00", -2.0, 0.01, None),
        ],
        [
            _visit("/", "bob", 7, "12:07:00", 3.25, 2.5, True, ["c", "a"]),
            _visit("/a b", "dee", 5, "12:08:30", _NAN, -3.0, True, ["b", "b"]),
            _visit("/", "ann", 1, None, 1.0, 1.0, False),
            _visit(None, "cy", 4, "12:09:00", -0.0, 0.0, True, ["a"]),
        ],
        # After a gap; the watermark was 11:59:00.
        [
            _visit("/", "eve", 40, "12:21:00", 8.0, 7.0, None, ["d"]),
            _visit("/buy", "bob", 2, "12:05:00", 0.125, 4.5, True),
            _visit("/", "late", 100, "11:00:00", 9.0, 9.0, True, ["late"]),
        ],
        # Two that are the same, and one that is late: the watermark was 12:11:00.
        [
            _visit("/", "late", 5, "12:00:30", 1.0, 1.0, True, ["late"]),
            _visit("/buy", "ann", 11, "12:45:00", 2.0, 6.5, False, ["a"]),
            _visit("/buy", "ann", 11, "12:45:00", 2.0, 6.5, False, ["a"]),
            _visit(None, "cy", 9, "12:21:30", 0.0, 5.0, True),
        ],
        # The end of all windows; the watermark was 12:35:00 and will be 13:20:00.
        [
            _visit("/", "bob", 3, "13:30:00", 1.75, 3.75, True, ["e"]),
            _visit("/buy", "late", 6, "12:30:00", 4.0, 2.0, False),
            _visit("/buy", "dee", 8, "12:36:00", 4.0, 2.0, False, ["b"]),
        ],
    ],
)

CLICKS = Stream(
    "ad string, who string, shown timestamp",
    [
        [_click("/", "x", "12:00:00"), _click("/buy", "y", "12:00:20")],
        [_click("/", "z", "12:06:00"), _click(None, "n", "12:06:00")],
        [_click("/none", "q", "12:20:00"), _click("/", "x", "12:22:00")],
        [_click("/buy", "w", "12:44:00"), _click("/", "late", "12:01:00")],
        [_click("/", "v", "13:29:00"), _click("/buy", "y", None)],
    ],
)

ORDERS = Stream(
    "item string, quantity int, made timestamp",
    [
        [_order("/", 1, "12:00:30"), _order("/buy", 2, "12:01:00")],
        [_order("/", 1, "12:00:30"), _order(None, 4, "12:08:00")],
        [],
        [_order("/buy", 5, "12:44:30")],
        [_order("/", 6, "13:28:00")],
    ],
)


def cases() -> list[Case]:
    """Programs that must give the same on both engines, in the order of the table."""
    return list(_read("cases.toml"))


def refused() -> list[Case]:
    """Programs that Spark refuses."""
    return list(_read("refused.toml"))


def left_to_spark() -> list[Case]:
    """Programs that have no operator."""
    return list(_read("left_to_spark.toml"))


def differing() -> list[Case]:
    """Programs that give other batches than on Spark's own engine."""
    return list(_read("differing.toml"))


def _read(table: str) -> Iterator[Case]:
    groups = tomllib.loads((_TABLES / table).read_text())
    names = [name for group in groups.values() for name in group["programs"]]
    assert len(set(names)) == len(names), f"{table} has a name twice"
    for group in groups.values():
        for name, program in group["programs"].items():
            told = {"mode": group["mode"], "conf": group.get("conf", {}), "why": group.get("why")}
            yield Case(name, program, **told)

"""Mutations of JSON, of bytes and of names, drawn from a seeded generator."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 7, 4095, 4096, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, 10**30,
    -(2**63), 0.5, 1e308, float("inf"), float("nan"), "", "0", "0-15", "0-4095", "15-0", "0,0", "²",
    "-1", "9" * 30, "0-99999999999", "../..", "segments/../millrace.json", "\ud800", "a\0b", "udt",
    "x" * 5000, [], {}, [[]], [None], {"": None}, {"type": "udt", "pyClass": "antigravity.X"},
)  # fmt: skip


def mutate_json(rng: random.Random, value: Any) -> Any:
    """A copy with one to three changes somewhere in it."""
    root = [copy.deepcopy(value)]
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        places = list(_places(root))
        holder, key = rng.choice(places)
        if holder is root:
            holder, key = rng.choice(places)
        _change(rng, places, holder, key)
    return root[0]


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every holder and key below a value."""
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        holder = waiting.pop()
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        for key in keys:
            found.append((holder, key))
            if isinstance(holder[key], dict | list):
                waiting.append(holder[key])
    return found


def _change(rng: random.Random, places: list[tuple[Any, Any]], holder: Any, key: Any) -> None:
    old = holder[key]
    kind = rng.randrange(8)
    if kind == 0:
        holder[key] = copy.deepcopy(rng.choice(ODD_VALUES))
    elif kind == 1:
        other, at = rng.choice(places)
        if isinstance(other, dict) or (isinstance(other, list) and at < len(other)):
            holder[key] = copy.deepcopy(other.get(at) if isinstance(other, dict) else other[at])
    elif kind == 2 and len(holder) > 1:
        del holder[key]
    elif kind == 3 and isinstance(holder, list):
        holder.insert(rng.randrange(len(holder) + 1), copy.deepcopy(old))
    elif kind == 4 and isinstance(holder, list):
        rng.shuffle(holder)
    elif kind == 5 and isinstance(holder, dict):
        holder[str(rng.choice(ODD_VALUES))[:200]] = old
    elif isinstance(old, bool):
        holder[key] = not old
    elif isinstance(old, int):
        holder[key] = old + rng.choice((-1, 1, 8, -8, 256, -(2**31), 2**40))
    elif isinstance(old, str):
        holder[key] = mutate_bytes(rng, old.encode("utf-8", "surrogatepass")).decode("latin-1")
    else:
        holder[key] = copy.deepcopy(rng.choice(ODD_VALUES))


def mutate_bytes(rng: random.Random, data: bytes, low: int = 0, high: int | None = None) -> bytes:
    """A copy with some change between two positions."""
    high = len(data) if high is None else high
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        if high <= low:
            return bytes(made)
        _BYTES[rng.randrange(len(_BYTES))](rng, made, rng.randrange(low, high), high)
    return bytes(made)


def _flip(rng: random.Random, made: bytearray, at: int, high: int) -> None:
    if at < len(made):
        made[at] ^= 1 << rng.randrange(8)


def _word(rng: random.Random, made: bytearray, at: int, high: int) -> None:
    """A number where one may be: Arrow's are aligned."""
    width = rng.choice((2, 4, 4, 8))
    at -= at % width
    odd = (0, 1, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**64 - 1)
    near = int.from_bytes(made[at : at + width], "little") + rng.choice((-8, -1, 1, 8, 64))
    number = rng.choice((rng.choice(odd), near, rng.randrange(0, 4096)))
    if at + width <= min(high, len(made)):
        made[at : at + width] = (number % (1 << (8 * width))).to_bytes(width, "little")


def _fill(rng: random.Random, made: bytearray, at: int, high: int) -> None:
    end = min(at + rng.randrange(1, 64), high, len(made))
    made[at:end] = bytes([rng.choice((0, 255, rng.randrange(256)))]) * max(end - at, 0)


def _copy(rng: random.Random, made: bytearray, at: int, high: int) -> None:
    size = min(rng.choice((4, 8, 16, 64)), max(len(made) - at, 0), max(high - at, 0))
    start = rng.randrange(max(len(made) - size, 1))
    made[at : at + size] = made[start : start + size]


def _cut(rng: random.Random, made: bytearray, at: int, high: int) -> None:
    if rng.randrange(4) == 0:
        del made[at : at + rng.randrange(1, 32)]


_BYTES: tuple[Callable[[random.Random, bytearray, int, int], None], ...] = (
    _flip, _flip, _word, _word, _word, _fill, _copy, _cut,
)  # fmt: skip


def odd_name(rng: random.Random, example: str) -> str:
    """A file name that is not quite one of Millrace's."""
    stems = (
        "0 copy.json", "²", "٣.json", "-1", "5.json", "9" * 40 + ".json", "1e3", "..json",
        'x" ; drop table y; --', "a\nb", "a'b", "00000000000x.json", "%00", "\udcff",
    )  # fmt: skip
    kind = rng.randrange(4)
    if kind == 0:
        return rng.choice(stems)
    if kind == 1:
        stem, dot, rest = example.partition(".")
        return f"{stem}{rng.choice((' copy', '~', '.tmp', '.1', '-2'))}{dot}{rest}"
    made = mutate_bytes(rng, example.encode("utf-8", "surrogateescape"))
    return made.replace(b"/", b"_").replace(b"\0", b"_").decode("utf-8", "surrogateescape") or "x"

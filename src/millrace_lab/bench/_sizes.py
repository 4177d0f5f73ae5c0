"""Sizes as people write them: 1k, 100k, 5m. The same words are part of the figures' names."""

from __future__ import annotations

import re

_UNITS = {"": 1, "k": 1_000, "m": 1_000_000}


def parse_size(text: str) -> int:
    """`"100k"` -> 100,000; `"2.5m"` -> 2,500,000; `"1_000"` -> 1,000."""
    found = re.fullmatch(r"([0-9][0-9_]*(?:\.[0-9]+)?)([km]?)", text.strip().lower())
    size = float(found.group(1).replace("_", "")) * _UNITS[found.group(2)] if found else 0.0
    if size < 1 or size != int(size):
        raise ValueError(f"{text!r} is not a size: write a whole number, or one such as 100k or 5m")
    return int(size)


def parse_sizes(text: str) -> list[int]:
    """A list such as `"100k,5m"`."""
    return [parse_size(part) for part in text.split(",")]


def size_name(size: int) -> str:
    """The inverse of `parse_size`, in its shortest form: 100,000 -> `"100k"`."""
    for unit, factor in (("m", 1_000_000), ("k", 1_000)):
        if size >= factor and size % (factor // 10) == 0:
            return f"{size / factor:g}{unit}"
    return str(size)

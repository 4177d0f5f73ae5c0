"""What JSON from a file may hold: a value has the type and the range it must have, or is refused.

A checksum shows that a file is what somebody wrote, not that Millrace wrote it. So whatever reads a
file of a location takes its values through these functions once, at the border, and nothing behind
the border checks again. They say what is wrong with a value; whoever knows the file adds its name.

Invariant: JSON's `true` is not a number here, and NaN and the infinities are none.
"""

from __future__ import annotations

import json
import math
from typing import Any

from millrace.errors import MalformedError

INT64 = 2**63 - 1
UINT64 = 2**64 - 1
MOST_TIME_MS = 253_402_300_799_999
"""The end of the year 9999, the last that Python has."""


def parse(data: bytes) -> Any:
    """The value of some JSON text."""
    try:
        found = json.loads(data, parse_constant=_no_constant)
        if b"\\ud" in data.lower():
            # Half of a surrogate pair is no text: it could not be written out again.
            json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"it is not JSON: {_brief(str(error))}") from error
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def integer(value: Any, what: str, low: int = 0, high: int = INT64) -> int:
    if type(value) is not int or not low <= value <= high:
        raise _wrong(what, value, f"a whole number from {low} to {high}")
    return value


def number(value: Any, what: str) -> float:
    if type(value) not in (int, float) or not 0 <= value <= INT64 or not math.isfinite(value):
        raise _wrong(what, value, "a number that is not negative")
    return float(value)


def text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise _wrong(what, value, "text")
    return value


def items(value: Any, what: str, length: int | None = None) -> list[Any]:
    if not isinstance(value, list) or length not in (None, len(value)):
        raise _wrong(what, value, "a list" if length is None else f"a list of {length}")
    return value


def members(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(what, value, "an object")
    return value


def _wrong(what: str, value: Any, wanted: str) -> MalformedError:
    return MalformedError(f"{what} is {_brief(_shown(value))}, not {wanted}")


def _shown(value: Any) -> str:
    try:
        return repr(value)
    except (ValueError, RecursionError):
        # Too many digits, or too deep.
        return f"a {type(value).__name__}"


def _brief(shown: str) -> str:
    return shown if len(shown) <= 80 else shown[:77] + "..."


class Fields:
    """An object whose fields are read by name."""

    def __init__(self, data: Any, what: str) -> None:
        self._data = members(data, what)
        self._what = what

    def has(self, name: str) -> bool:
        """Whether there is such a field, other than null."""
        return self._data.get(name) is not None

    def __getitem__(self, name: str) -> Any:
        if name not in self._data:
            raise MalformedError(f"{self._what} has no {name!r}")
        return self._data[name]

    def _name(self, name: str) -> str:
        return f"{name!r} of {self._what}"

    def integer(self, name: str, low: int = 0, high: int = INT64) -> int:
        return integer(self[name], self._name(name), low, high)

    def maybe_integer(self, name: str, low: int = 0, high: int = INT64) -> int | None:
        """The same for one that may be null."""
        return None if self[name] is None else self.integer(name, low, high)

    def text(self, name: str) -> str:
        return text(self[name], self._name(name))

    def items(self, name: str, length: int | None = None) -> list[Any]:
        return items(self[name], self._name(name), length)

    def members(self, name: str) -> dict[str, Any]:
        return members(self[name], self._name(name))

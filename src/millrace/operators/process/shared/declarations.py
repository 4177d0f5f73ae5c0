"""What a processor declares of state that is not per key.

**Broadcast** state is a map that every shard sees the same, fed by a second stream. **Task** state
is one value per shard; how it follows a change of the shards is declared with it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeAlias

from pyspark.sql import types as T

from millrace.ddl import parse_type
from millrace.errors import StateAccessError, UsageError
from millrace.operators.process.declarations import Declaration, entry_key

Split: TypeAlias = Callable[[Any, list[int]], Sequence[Any]]
"""Of a value, one part for each share; a share is a number of key groups."""

Merge: TypeAlias = Callable[[list[Any]], Any]
"""One value of several."""

COPY, DIVIDE, CONCAT = "copy", "divide", "concat"


class SharedDeclaration(Declaration):
    """Base of states that do not belong to a key. They do not expire."""

    ttl_us: int | None = None

    def spec(self) -> dict[str, Any]:
        return {"kind": self.kind, "types": [t.jsonValue() for t in self.types()]}

    def types(self) -> list[T.DataType]:
        raise NotImplementedError

    def _refuse(self, attribute: str) -> NoReturn:
        raise StateAccessError(
            f"{self.kind} state {self.name!r}.{attribute} was used outside of process() and "
            "on_timer(). It has a value only while an epoch runs; a mr.BatchProcessor reads it as "
            f"state[{self.name!r}]."
        )


class Broadcast(SharedDeclaration):
    """A map that is the same everywhere, read-only, and fed by a second stream."""

    kind = "broadcast"

    def __init__(self, key_type: str | T.DataType, value_type: str | T.DataType) -> None:
        self.key_type = entry_key("Broadcast", key_type)
        self.value_type = parse_type(value_type)

    def types(self) -> list[T.DataType]:
        return [self.key_type, self.value_type]


class TaskState(SharedDeclaration):
    """One value per shard.

    When key groups move between shards, `split(value, shares)` gives each of the shards that take
    over key groups of one shard its part, and `merge(values)` makes one of what a shard gets from
    several. `split` may also be `"copy"` or, for numbers and arrays, `"divide"`; `merge` may be
    `"concat"` for arrays.
    """

    kind = "task"

    def __init__(
        self,
        type: str | T.DataType,
        *,
        split: str | Split,
        merge: str | Merge,
        default: Any = None,
    ) -> None:
        self.type = parse_type(type)
        self.default = default
        self.split_function = _split_rule(split, self.type)
        self.merge_function = _merge_rule(merge, self.type)

    def types(self) -> list[T.DataType]:
        return [self.type]


def _split_rule(split: object, type: T.DataType) -> Split:
    if callable(split):
        return split
    if split == COPY:
        return copies
    if split == DIVIDE:
        if isinstance(type, T.ArrayType):
            return divided_array
        if isinstance(type, T.IntegralType):
            return divided_integer
        if isinstance(type, T.FractionalType) and not isinstance(type, T.DecimalType):
            return divided_float
        raise UsageError(
            f"TaskState: split='divide' takes arrays, integers and floating point numbers, not "
            f"{type.simpleString()}. Give a function split(value, shares) that returns a list."
        )
    raise UsageError(
        f"TaskState: split={split!r} must be 'copy', 'divide' or a function split(value, shares)."
    )


def _merge_rule(merge: object, type: T.DataType) -> Merge:
    if callable(merge):
        return merge
    if merge == CONCAT:
        if isinstance(type, T.ArrayType):
            return concatenated
        raise UsageError(
            f"TaskState: merge='concat' takes arrays, not {type.simpleString()}. Give a function "
            "merge(values), such as sum."
        )
    raise UsageError(
        f"TaskState: merge={merge!r} must be 'concat' or a function merge(values), such as sum."
    )


def copies(value: Any, shares: list[int]) -> list[Any]:
    return [value] * len(shares)


def _bounds(whole: int, shares: list[int]) -> list[int]:
    """Where the parts of a whole end, rounded down, so that they add up to it."""
    total, reached, bounds = sum(shares), 0, [0]
    for share in shares:
        reached += share
        bounds.append(whole * reached // total)
    return bounds


def divided_array(value: list[Any], shares: list[int]) -> list[Any]:
    """Neighbours stay together, and all parts in order are the whole."""
    bounds = _bounds(len(value), shares)
    return [value[a:b] for a, b in itertools.pairwise(bounds)]


def divided_integer(value: int, shares: list[int]) -> list[Any]:
    """Whole numbers that add up to the value."""
    bounds = _bounds(value, shares)
    return [b - a for a, b in itertools.pairwise(bounds)]


def divided_float(value: float, shares: list[int]) -> list[Any]:
    return [value * share / sum(shares) for share in shares]


def concatenated(values: list[Any]) -> Any:
    return [element for part in values for element in part]

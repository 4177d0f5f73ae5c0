"""What an aggregate keeps in state, and how to compute a result from it. Pure Arrow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from millrace.errors import AggregateOverflowError

State: TypeAlias = Sequence[pa.Array]
"""The state columns of one aggregate: a row per key, NULL where a key has none."""


def _stored(state: State) -> pa.Array:
    return state[0]


@dataclass(frozen=True)
class Kept:
    """The state columns of one aggregate, and how to compute the result from them."""

    fields: list[pa.Field]
    type: pa.DataType
    """Of the result."""
    result: Callable[[State], pa.Array] = _stored


@dataclass(frozen=True)
class Asked:
    """An aggregate function over a type, with its options: what a layout is made for."""

    function: str
    name: str
    type: pa.DataType
    """Of the input; a function of two columns has a struct of both."""
    options: Mapping[str, Any]
    ansi: bool = True


Layout: TypeAlias = Callable[[Asked], Kept]


def overflow(name: str, type_name: str) -> AggregateOverflowError:
    return AggregateOverflowError(
        f"the aggregate {name!r} left the range of {type_name}. The epoch was not committed. Use a "
        "wider type (cast the column to decimal or double), or set spark.sql.ansi.enabled=false to "
        "get Spark's non-ANSI behaviour."
    )

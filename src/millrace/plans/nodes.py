"""A streaming plan as plain data: nodes, columns and expressions, as the JVM reader found them.

Everything that a rule needs to know is here, so rules are functions without Spark. Expressions are
SQL texts; only conditions of joins are trees, because rules look into them. Numbers of nodes are
those of a walk in order, parents first: the reader keeps Spark's own objects by them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

WINDOW, SESSION = "window", "session"
"""What a column of windows is made by: `F.window` or `F.session_window`."""


@dataclass(frozen=True)
class Attribute:
    """A column, as Spark identifies it."""

    id: int
    name: str
    type: str
    delay_ms: int | None = None
    """How late its rows may be, if `withWatermark` named it or what it was computed from."""
    windows: str | None = None
    """WINDOW or SESSION, if its values are such windows."""


@dataclass(frozen=True)
class Windows:
    """Windows of a column, where the plan computes them right below their aggregation."""

    size_us: int
    slide_us: int
    offset_us: int


@dataclass(frozen=True)
class Session:
    """Sessions of a column; no gap if it is computed for every row."""

    gap_us: int | None


@dataclass(frozen=True)
class Key:
    """A grouping expression."""

    sql: str
    column: Attribute
    shape: Windows | Session | None = None


@dataclass(frozen=True)
class Call:
    """An aggregate function in a plan: its class in Spark, and what it is applied to."""

    function: str
    sql: str
    name: str
    """What the program calls it, or an empty text."""
    inputs: tuple[str, ...]
    types: tuple[str, ...]
    is_distinct: bool = False
    filter: str | None = None
    options: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True)
class Aggregation:
    """What an Aggregate groups by and computes."""

    keys: tuple[Key, ...]
    calls: tuple[Call, ...]


@dataclass(frozen=True)
class Expression:
    """A part of a condition."""

    kind: str
    sql: str
    children: tuple[Expression, ...] = ()
    attribute: int | None = None
    interval_us: int | None = None
    """Of a literal interval without months."""

    def attributes(self) -> frozenset[int]:
        """The ids of all columns in it."""
        own = frozenset() if self.attribute is None else frozenset([self.attribute])
        return own.union(*(child.attributes() for child in self.children))


@dataclass(frozen=True)
class Joining:
    """The kind of a join and its condition; the left stream is the node's first child."""

    how: str
    condition: Expression | None


@dataclass(frozen=True)
class Deduplication:
    """The columns that are compared."""

    keys: tuple[Attribute, ...]
    within_watermark: bool


@dataclass(frozen=True)
class Processing:
    """A processor: the number of key columns in front, and Spark's modes."""

    keys: int
    time_mode: str
    output_mode: str
    in_pandas: bool
    has_initial_state: bool = False


Detail = Aggregation | Joining | Deduplication | Processing


@dataclass(frozen=True)
class Node:
    """A node of a plan."""

    number: int
    kind: str
    """The name of its class in Spark."""
    is_streaming: bool
    output: tuple[Attribute, ...]
    children: tuple[Node, ...] = ()
    detail: Detail | None = None
    sql: str = ""
    """The node in one line, for people."""

    def walk(self) -> Iterator[Node]:
        """This node and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()

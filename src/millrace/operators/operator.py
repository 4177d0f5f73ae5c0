"""What the runtime knows about an operator.

An operator is pure: it takes replicas at a version and an epoch's rows, and gives back the rows of
state that changed and what to send on. It does not write, commit or follow the log.
Its spec, a JSON document, lives in the manifests: that is how a location can be read, and a changed
query recognised, without the program that wrote it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from millrace import types
from millrace.arrays import Int64Array
from millrace.ids import OperatorName
from millrace.keygroups import Assignment
from millrace.operators.input import Input
from millrace.state.eviction import Eviction

if TYPE_CHECKING:
    # Readers need the names below without PySpark and Numba.
    from pyspark.sql import types as T

    from millrace.state.replica import Replica
    from millrace.state.writing import Sweep

MAIN = ""
"""The table with one row per key. Other tables hold rows that belong to one of its rows."""

MAIN_OUTPUT = ""
"""What an operator emits. Other outputs are beside it, each with a name and a schema."""


@dataclass(frozen=True)
class Column:
    """A column of a key or of the input: its name and Spark's type."""

    name: str
    type: T.DataType

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "type": types.to_json(self.type)}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Column:
        return Column(data["name"], types.from_json(data["type"]))


@dataclass(frozen=True)
class TableLayout:
    """A table: its columns, and whether its rows belong to a key.

    Such a row is found by its owner's fingerprint, together with all others of that owner.
    """

    schema: pa.Schema
    owned: bool = False
    everywhere: bool = False
    """Whether every shard reads all of it; each still writes its own key groups only."""
    per_shard: bool = False
    """Whether it holds something of each shard, so that every shard must run in every epoch."""
    evicts: bool = False
    """Whether its rows go by themselves when the watermark passes them: see `state.eviction`."""


@dataclass(frozen=True)
class ResultColumn:
    """A column as a reader sees it, and the columns of the main table it is computed from."""

    name: str
    type: pa.DataType
    needs: tuple[str, ...]
    make: Callable[[Sequence[pa.Array]], pa.Array] = field(default=lambda state: state[0])


@dataclass(frozen=True)
class Moment:
    """The epoch's time: the same however often the epoch runs."""

    epoch: int
    processing_us: int
    watermark_us: int | None
    """The operator's watermark: no row with an earlier event time is expected any more."""
    late_us: int | None = None
    """Its watermark in the previous epoch: Spark's stateful operators compare late rows with it."""
    assignment: Assignment | None = None
    """Which shard owns which key group in this epoch; needed for tables that are `per_shard`."""
    parent: str = ""
    """The checksum of the manifest that the epoch builds on."""
    since_us: int = 0
    """The processing time of the previous epoch."""
    more: bool = False
    """Whether more rows of the same epoch are going to be applied: nothing is final yet."""

    def of(self, time: str) -> int | None:
        """Now, in event time or processing time."""
        return self.watermark_us if time == "event" else self.processing_us


@dataclass(frozen=True)
class StateLayout:
    """What a reader knows about an operator's state."""

    tables: dict[str, TableLayout]
    results: Callable[[Moment], list[ResultColumn]]
    """Keys and results at a moment, one row per key of the main table."""
    evicted: Callable[[str, Moment], Eviction | None] = field(default=lambda table, moment: None)
    """Which rows of a table the watermark has passed, though they may still be stored."""


@dataclass(frozen=True)
class TableChange:
    """Changed rows of one table, sorted by fingerprint, in its replica's schema."""

    rows: pa.RecordBatch
    added: int
    removed: int = 0
    evicted: int = 0
    """Rows that the watermark has passed. They are gone without being written: every reader and
    every merge knows them by their time."""


@dataclass(frozen=True)
class Change:
    """What an operator did with one shard's rows of an epoch."""

    tables: dict[str, TableChange]
    output: pa.RecordBatch
    counters: dict[str, int] = field(default_factory=dict)
    sides: dict[str, pa.RecordBatch] = field(default_factory=dict)
    """Rows of the outputs beside the main one; an output without rows may be left out."""


class Operator(Protocol):
    """A stateful step with a stable name."""

    @property
    def name(self) -> OperatorName: ...

    @property
    def tables(self) -> dict[str, TableLayout]: ...

    @property
    def output_schema(self) -> T.StructType: ...

    @property
    def side_schemas(self) -> dict[str, T.StructType]:
        """The outputs beside the main one, by name."""

    @property
    def runs_without_rows(self) -> bool:
        """Whether time alone gives shards something to do, so that epochs must run without rows."""

    def spec(self) -> dict[str, Any]: ...

    def output_watermark(self, watermark_us: int | None) -> int | None:
        """The watermark of what it emits, given its own. Operators that hold rows back for a time,
        and let them go later with their old event times, have an earlier one."""

    def no_rows(self) -> Input:
        """The input of an epoch without rows, for operators that run anyway."""

    def apply(
        self,
        replicas: dict[str, Replica],
        rows: Input,
        groups: Int64Array,
        moment: Moment,
    ) -> Change: ...

    def sweep(self, table: str, moment: Moment) -> Sweep | Eviction | None:
        """A function that marks expired rows of a table; None if its rows never expire."""


def runs_every_epoch(operator: Operator) -> bool:
    """Whether every shard of an operator runs in every epoch there is, with rows or without.

    That does not ask for epochs: only `runs_without_rows` does. Where rows go by themselves, every
    shard counts those that go in an epoch.
    """
    tables = operator.tables.values()
    return operator.runs_without_rows or any(t.per_shard or t.evicts for t in tables)

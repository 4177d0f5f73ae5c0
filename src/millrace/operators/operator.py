"""What the runtime knows of an operator.

An operator is pure: it takes a replica at a version and an epoch's rows, and gives back the rows of
state that changed and what to send on. Writing, committing and following are not its business.
It travels as its spec, a JSON document, which also lives in the manifests: that is how a location
can be read, and a changed query recognised, without the program that wrote it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import types as T

from millrace.ids import OperatorName
from millrace.state.replica import Replica


@dataclass(frozen=True)
class Change:
    """What an operator did with one shard's rows of an epoch."""

    rows: pa.RecordBatch
    """Changed rows of state, sorted by fingerprint, in the replica's schema."""
    output: pa.RecordBatch
    added: int
    """How many of them are new keys."""
    removed: int = 0


class Operator(Protocol):
    """A stateful step with a stable name."""

    @property
    def name(self) -> OperatorName: ...

    @property
    def state_schema(self) -> pa.Schema:
        """The columns of the state, without the system's."""

    @property
    def output_schema(self) -> T.StructType: ...

    def spec(self) -> dict[str, Any]: ...

    def apply(self, replica: Replica, rows: pa.Table) -> Change: ...

    def show(self, state: pa.RecordBatch) -> pa.RecordBatch:
        """State as a reader wants to see it: keys and values."""

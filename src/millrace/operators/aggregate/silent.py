"""The keyed aggregate that emits nothing: its state is there to be read.

State, spec and arithmetic are those of `AggregateOperator`; a location can go from one to the other
between starts. Results are not computed, so an epoch costs what the state costs.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from millrace.operators.aggregate.operator import AggregateOperator, code_of


class SilentAggregateOperator(AggregateOperator):
    """Keys and aggregates; emits none of them."""

    def code(self) -> bytes:
        return code_of(self)

    def _emitted(self, keys: Sequence[pa.Array], state: Sequence[pa.Array]) -> pa.RecordBatch:
        return super()._emitted([k.slice(0, 0) for k in keys], [s.slice(0, 0) for s in state])

"""States of one aggregate, put together: by function, without PySpark.

A combiner takes the states of some groups, in the order in which their rows count, and gives one
state for each group. A NULL state is that of no rows. To add an epoch's rows to a state, a reducer
makes a state of each of its partial results and combines; a window combines its panes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import pyarrow as pa

from millrace.arrays import Int64Array
from millrace.operators.aggregate.combiners import bits, by, collected, moments, ranked, sketches
from millrace.operators.aggregate.kept import State

Combiner: TypeAlias = Callable[[State, Int64Array, Mapping[str, Any]], list[pa.Array]]
"""Group `g` has the states `starts[g]` to `starts[g + 1]`; the options are the aggregate's."""

COMBINERS: dict[str, Combiner] = {
    **bits.COMBINERS,
    **by.COMBINERS,
    **collected.COMBINERS,
    **moments.COMBINERS,
    **ranked.COMBINERS,
    **sketches.COMBINERS,
}
"""By the name of the function."""

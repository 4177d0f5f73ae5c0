"""What the counts must be, computed another way: one Spark batch over the rows, and arithmetic.

The first rows of a source may have been used to create keys, one each; the batch counts the rest.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.arrays import Int64Array
from millrace_lab.bench._side_process import SideHandle


def expected(spark: SideHandle, workdir: Path, *, loaded: int, rows: int, keys: int) -> Int64Array:
    """The count of each key after `rows` rows, of which the first `loaded` made a key each."""
    path = workdir / f"oracle-{keys}.parquet"
    spark.call("oracle", first=loaded, rows=rows, keys=keys, path=str(path))
    counted = pq.read_table(path)
    path.unlink()
    counts = np.zeros(keys, np.int64)
    counts[:loaded] = 1
    counts[counted["key"].to_numpy()] += counted["n"].to_numpy()
    return counts


def state(process: SideHandle, name: str, workdir: Path) -> pa.Table:
    """A side's own counts, sorted by key."""
    path = workdir / f"{process.kind}-{name}.parquet"
    process.call("state", name=name, path=str(path))
    table = pq.read_table(path)
    path.unlink()
    return table


def same(table: pa.Table, counts: Int64Array) -> bool:
    """Whether a side has exactly these counts, and no key without one."""
    keys = np.flatnonzero(counts)
    return bool(
        np.array_equal(table["key"].to_numpy(), keys)
        and np.array_equal(table["n"].to_numpy(), counts[keys])
    )

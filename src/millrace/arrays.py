"""The types of the NumPy arrays that the state, the log and the operators pass around."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

BoolArray = npt.NDArray[np.bool_]
Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
UInt8Array = npt.NDArray[np.uint8]
UInt32Array = npt.NDArray[np.uint32]
UInt64Array = npt.NDArray[np.uint64]
Float64Array = npt.NDArray[np.float64]
RecordArray = npt.NDArray[np.void]
"""Of a structured type: one record per key group, for example."""

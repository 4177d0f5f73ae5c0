"""`millrace bench`: run benchmarks, show what they measured, write it to files.

Exit codes: 0 when the outputs of all sides were equal, whatever the bars; 1 when they differed or a
side failed; 2 for wrong options.
"""

from __future__ import annotations

# Each adds its commands to the group.
from millrace_lab.bench.cli import programs, reading, reconfiguring, results, state
from millrace_lab.bench.cli._group import bench

__all__ = ["bench", "programs", "reading", "reconfiguring", "results", "state"]

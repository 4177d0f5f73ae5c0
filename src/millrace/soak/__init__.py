"""`millrace soak`: a query under seeded faults for as long as you like, compared with a batch run.

A supervisor starts the query's driver on a standalone cluster of its own (`cluster`), disturbs it
by a schedule that a seed determines (`schedule`), starts it again whenever it ends (`lives`), and
at the end compares all state and all outputs with what DuckDB makes of the same rows (`oracle`).
What is disturbed and how is in `machine`; the query is in `workload`; a driver's own program is
`driver`.
"""

from millrace.soak.command import soak

__all__ = ["soak"]

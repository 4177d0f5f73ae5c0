"""`millrace soak`: a query under seeded faults for as long as you like, compared with a batch run.

A supervisor (`supervisor`) starts the query's driver on a standalone cluster of its own
(`cluster`), disturbs it by a schedule that a seed determines (`schedule`), and starts it again
whenever it ends. At the end all state and all outputs are compared with what DuckDB makes of the
same rows (`oracle`). `disk` fills up, `clocks` jump; `workload` is the query, `driver` its program.
Beside it (`companions`), two witnesses (`reading`, `client`) compare what they see, epoch by epoch.
"""

from millrace_lab.soak.command import soak

__all__ = ["soak"]

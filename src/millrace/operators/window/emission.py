"""When an operator over event time emits: what is final, what changed, or both.

* `"final"`: each result once, when the watermark has passed it; Spark's append.
* `"update"`: in every epoch the results that changed in it; Spark's update.
* `"early=10 seconds"`: every ten seconds of processing time the results that changed since then,
  and each result once more when it is final.
* `"none"`: nothing is emitted; the state is there to be read.
"""

from __future__ import annotations

from dataclasses import dataclass

FINAL, UPDATE, EARLY, NONE = "final", "update", "early", "none"

IS_FINAL = "is_final"
"""The column that tells final results from early ones."""


@dataclass(frozen=True)
class Emission:
    """How an operator emits."""

    mode: str
    period_us: int = 0
    """How often early results come, in processing time."""

    @property
    def is_final(self) -> bool:
        """Whether every result is final, so that event time is available after the operator."""
        return self.mode == FINAL

    @property
    def has_early(self) -> bool:
        return self.mode == EARLY

    def next_due(self, processing_us: int) -> int:
        """When a result that changes now is due early."""
        return (processing_us // self.period_us + 1) * self.period_us

    def __str__(self) -> str:
        return f"{EARLY}={self.period_us} us" if self.has_early else self.mode

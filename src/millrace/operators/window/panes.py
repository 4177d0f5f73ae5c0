"""Which windows there are, and the panes that they are made of. Pure arithmetic.

    offset          +slide          +2 slide
      |---------------|---------------|---------
      |<------------ size ------------>|           a window begins at every slide
      |---|---|---|---|---|---|---|---|            panes: gcd(size, slide) long

Every window is a whole number of panes, and a pane is wholly inside a window or outside. So state
has one row per key and pane, however many windows overlap, and a window is the sum of its panes.
Windows that do not overlap have one pane each. All times are in microseconds since 1970, as Spark's
`F.window` counts: time zones and their changes play no part.

A window is over when the watermark has reached its end, and a pane when its last window is over.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from millrace.arrays import Int64Array
from millrace.errors import WindowError

MOST_PANES = 32_768
"""A window of more panes than this is refused."""


@dataclass(frozen=True)
class Windows:
    """Windows of one size, one of which begins every `slide_us`, counted from `offset_us`."""

    size_us: int
    slide_us: int
    offset_us: int = 0

    def __post_init__(self) -> None:
        if self.size_us <= 0 or self.slide_us <= 0:
            raise WindowError("the size and the slide of a window must be longer than zero.")
        if self.slide_us > self.size_us:
            raise WindowError(
                f"the slide, {duration_text(self.slide_us)}, is longer than the window, "
                f"{duration_text(self.size_us)}: rows in between would be in no window. Make the "
                "slide at most as long as the window."
            )
        if abs(self.offset_us) >= self.slide_us:
            raise WindowError(
                f"the offset, {duration_text(self.offset_us)}, is not shorter than the slide, "
                f"{duration_text(self.slide_us)}. Windows begin every slide, so a shorter offset "
                "says the same."
            )
        if self.size_us // self.pane_us > MOST_PANES:
            raise WindowError(
                f"a window of {duration_text(self.size_us)} every {duration_text(self.slide_us)} "
                f"is made of {self.size_us // self.pane_us:,} panes of "
                f"{duration_text(self.pane_us)}; at most {MOST_PANES:,} are allowed. Choose a "
                "longer slide that divides the size."
            )

    @property
    def pane_us(self) -> int:
        """The length of a pane."""
        return math.gcd(self.size_us, self.slide_us)

    @property
    def overlap(self) -> bool:
        """Whether a row can be in several windows."""
        return self.slide_us < self.size_us

    def pane_of(self, event_us: Any) -> Any:
        """The start of the pane of an event time."""
        return event_us - (event_us - self.offset_us) % self.pane_us

    def last_end(self, pane_us: Any) -> Any:
        """The end of the last window that a pane is in."""
        return pane_us - (pane_us - self.offset_us) % self.slide_us + self.size_us

    def first_end(self, pane_us: Any) -> Any:
        """The end of the first window that a pane is in."""
        # Windows end where `ends` are aligned; the first end after the pane's own start.
        since = (pane_us - self.offset_us - self.size_us) % self.slide_us
        return pane_us - since + self.slide_us

    def end_after(self, time_us: int) -> int:
        """The first end of a window after a time."""
        since = (time_us - self.offset_us - self.size_us) % self.slide_us
        return time_us - since + self.slide_us

    def over_before(self, watermark_us: int) -> int:
        """Panes that begin before this time are over: all of their windows have ended."""
        return self.end_after(watermark_us) - self.size_us

    def ends(
        self, panes: Int64Array, after_us: int, until_us: int | None = None
    ) -> tuple[Int64Array, Int64Array]:
        """The windows of some panes that end after a time, and not after another.

        Gives, for each window of each pane, the position of the pane and the window's end.
        """
        first = np.maximum(self.first_end(panes), self.end_after(after_us))
        last = self.last_end(panes)
        if until_us is not None:
            last = np.minimum(last, self.end_after(until_us) - self.slide_us)
        which, number = counted(np.maximum((last - first) // self.slide_us + 1, 0))
        return which, first[which] + number * self.slide_us

    def to_json(self) -> dict[str, int]:
        return {"size": self.size_us, "slide": self.slide_us, "offset": self.offset_us}

    @staticmethod
    def from_json(data: dict[str, int]) -> Windows:
        return Windows(data["size"], data["slide"], data["offset"])

    def __str__(self) -> str:
        slide = f" every {duration_text(self.slide_us)}" if self.overlap else ""
        offset = f" from {duration_text(self.offset_us)}" if self.offset_us else ""
        return f"{duration_text(self.size_us)}{slide}{offset}"


def counted(counts: Int64Array) -> tuple[Int64Array, Int64Array]:
    """For counts of 2 and 3: the positions 0 0 1 1 1, and the numbers 0 1 0 1 2."""
    which = np.repeat(np.arange(len(counts)), counts)
    before = np.cumsum(counts) - counts
    return which, np.arange(len(which)) - before[which]


_UNITS = [("day", 86_400_000_000), ("hour", 3_600_000_000), ("minute", 60_000_000)]
_UNITS += [("second", 1_000_000), ("millisecond", 1_000), ("microsecond", 1)]


def duration_text(us: int) -> str:
    """A duration in words."""
    for unit, length in _UNITS:
        if us % length == 0 and us:
            count = us // length
            return f"{count} {unit}{'' if abs(count) == 1 else 's'}"
    return "0 seconds"

"""The graph of a query: which points it has, who reads them, and what Spark's stream is made of.

Stateless steps right behind a source are part of Spark's stream as long as each has one reader. The
last such point is a *feed*: Spark's stream brings the rows of all feeds, and what comes after them
is planned for every batch. So a source that two branches read is read once, and a query with one
feed costs what its Spark stream costs.

Invariant: the order of feeds follows from the names of the operators that read them, not from how
the program is arranged, because Spark's offsets are by the number of a source.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from millrace.errors import DuplicateNameError
from millrace.ids import OperatorName
from millrace.operators import Operator
from millrace.operators.operator import MAIN_OUTPUT
from millrace.spark.steps import OperatorStep, OutputStep, Point


class Graph:
    """All points that lead to some ends, each of which a sink reads."""

    def __init__(self, ends: Sequence[Point]) -> None:
        self.points = tuple(upstream(ends))
        """Each after its inputs."""
        self.operators = [p for p in self.points if isinstance(p.step, OperatorStep)]
        self._readers: dict[Point, list[Point | None]] = {point: [] for point in self.points}
        for point in self.points:
            for read in point.inputs:
                self._readers[read].append(point)
        for end in ends:
            self._readers[end].append(None)
        self._inside = self._find_inside()
        self.feeds = tuple(self._order_feeds(ends))
        self._check_names()

    def readers(self, point: Point) -> list[Point | None]:
        """Who reads a point: other points, one of them twice if it does so, and None for a sink."""
        return self._readers[point]

    def is_shared(self, point: Point) -> bool:
        return len(self._readers[point]) > 1

    def outputs(self, point: Point) -> tuple[str, ...]:
        """An operator's outputs that are read, the main one first."""
        steps = [None if reader is None else reader.step for reader in self._readers[point]]
        sides = [step.output for step in steps if isinstance(step, OutputStep)]
        is_main_read = len(steps) > len(sides)
        return ((MAIN_OUTPUT,) if is_main_read else ()) + tuple(sides)

    def _find_inside(self) -> set[Point]:
        """The points that are part of Spark's stream."""
        inside: set[Point] = set()
        for point in self.points:
            alone = all(i in inside and not self.is_shared(i) for i in point.inputs)
            if point.frame is not None and alone:
                inside.add(point)
        return inside

    def _is_feed(self, point: Point) -> bool:
        reader = self._readers[point][0]
        goes_on = reader is not None and reader in self._inside
        return point in self._inside and not goes_on

    def _order_feeds(self, ends: Sequence[Point]) -> list[Point]:
        found: dict[Point, None] = {}

        def visit(point: Point) -> None:
            if self._is_feed(point):
                found[point] = None
            elif not isinstance(point.step, OperatorStep):
                for read in point.inputs:
                    visit(read)

        for point in sorted(self.operators, key=lambda p: operator_of(p).name):
            for read in point.inputs:
                visit(read)
        for end in ends:
            visit(end)
        return list(found)

    def _check_names(self) -> None:
        names: set[OperatorName] = set()
        for point in self.operators:
            name = operator_of(point).name
            if name in names:
                raise DuplicateNameError(
                    f"two operators are called {name!r}. Give each its own name: it "
                    "identifies the operator's state. If they are meant to be one, keep its stream "
                    "in a variable and build both branches from it."
                )
            names.add(name)

    def watermarks(self, source_us: int | None) -> dict[OperatorName, int | None]:
        """The watermark of each operator, given that of the sources.

        An operator's is the smallest of what its inputs give on; a source's is Spark's own, which
        is the smallest of all sources.
        """
        given: dict[Point, int | None] = {}
        found: dict[OperatorName, int | None] = {}
        for point in self.points:
            known = [us for us in map(given.__getitem__, point.inputs) if us is not None]
            watermark_us = min(known, default=None) if point.inputs else source_us
            if isinstance(point.step, OperatorStep):
                found[point.step.operator.name] = watermark_us
                watermark_us = point.step.operator.output_watermark(watermark_us)
            given[point] = watermark_us
        return found


def operator_of(point: Point) -> Operator:
    """The operator that leads to a point."""
    assert isinstance(point.step, OperatorStep)
    return point.step.operator


def upstream(ends: Iterable[Point]) -> Iterator[Point]:
    """Some points and all that they depend on, each once and after its inputs."""
    seen: set[Point] = set()
    for end in ends:
        stack: list[tuple[Point, bool]] = [(end, False)]
        while stack:
            point, is_ready = stack.pop()
            if is_ready:
                yield point
            elif point not in seen:
                seen.add(point)
                stack.append((point, True))
                stack += [(read, False) for read in reversed(point.inputs)]

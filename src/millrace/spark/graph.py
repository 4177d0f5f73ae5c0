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
from millrace.operators.process.keyed import KeyedOperator
from millrace.spark.steps import OperatorStep, OutputStep, Point

Pair = tuple[int | None, int | None]
"""A watermark now, and an epoch before."""


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

    def watermarks(
        self, source_us: int | None, before_us: int | None = None
    ) -> dict[OperatorName, int | None]:
        """The watermark of each operator, given those of the sources now and an epoch before.

        An operator's is the smallest of what its inputs give on; a source's is Spark's own, which
        is the smallest of all sources. A processor has that of an epoch before if an operator is in
        front of it, which lets rows go in the epoch in which the watermark reaches them: a
        processor takes what is older than its watermark for late, because a timer that it sets for
        such a row may have passed.
        """
        given: dict[Point, Pair] = {}
        found: dict[OperatorName, int | None] = {}
        sources = source_us, None if source_us is None else before_us or 0
        for point in self.points:
            both = _smallest([given[read] for read in point.inputs]) if point.inputs else sources
            if isinstance(point.step, OperatorStep):
                operator = point.step.operator
                if isinstance(operator, KeyedOperator) and operator.compares_with_watermark:
                    both = both if _is_first(point) else (both[1], both[1])
                found[operator.name] = both[0]
                both = operator.output_watermark(both[0]), operator.output_watermark(both[1])
            given[point] = both
        return found


def _is_first(point: Point) -> bool:
    """Whether no operator is in front of it."""
    return all(read.frame is not None for read in point.inputs)


def _smallest(pairs: Sequence[Pair]) -> Pair:
    now, before = ([us for us in column if us is not None] for column in zip(*pairs, strict=True))
    return min(now, default=None), min(before, default=None)


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

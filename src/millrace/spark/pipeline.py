"""The pipeline of a query: a graph of steps from its sources to its sinks.

Invariant: however many readers a point has, the steps up to it run once an epoch; what several read
is kept until the epoch's end. A point with one reader keeps nothing, so a query with one source and
one sink costs what it would without a graph. A join whose inputs both come straight from sources
reads them in one pass. Rows of broadcast streams, which come with the batch, reach only the
operators they are for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from millrace.ids import OperatorName
from millrace.operators import Operator
from millrace.operators.operator import MAIN_OUTPUT
from millrace.spark.broadcast import Side, with_broadcast
from millrace.spark.graph import Graph, operator_of
from millrace.spark.outputs import pick
from millrace.spark.sinks import Sink
from millrace.spark.steps import OperatorStep, OutputStep, Point, TransformStep, UnionStep
from millrace.spark.template import KeptFrame, PlanTemplate, is_bare
from millrace.spark.uniting import LEFT, RIGHT, Batches, conform, union, wrap

PlanOperator = Callable[[OperatorStep, DataFrame, str], DataFrame]
"""Plans an operator over a frame, at a moment."""


@dataclass(frozen=True)
class Path:
    """The point that a sink reads, and its schema."""

    point: Point
    schema: T.StructType
    sink: Sink


class Pipeline:
    """The paths of a query, combined."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = tuple(paths)
        self.graph = Graph([path.point for path in paths])
        self.steps = [p.step for p in self.graph.operators if isinstance(p.step, OperatorStep)]
        self.outputs: dict[OperatorName, tuple[str, ...]] = {
            operator_of(point).name: self.graph.outputs(point) for point in self.graph.operators
        }
        """Which outputs of each operator are read."""
        sides = sorted((s for step in self.steps for s in step.sides), key=lambda s: s.column)
        # By name: Spark's offsets are by the number of a source, however the program is arranged.
        self._feeds = {point: number for number, point in enumerate(self.graph.feeds)}
        frames = [point.frame for point in self.graph.feeds]
        self.batches = Batches(tuple(f for f in frames if f is not None), tuple(sides))
        self.reads_of_batch = self._count_reads()
        """How many times the plan of an epoch goes through the batch."""
        self._templates: dict[tuple[str, str], PlanTemplate] = {}

    @property
    def operators(self) -> list[Operator]:
        return [step.operator for step in self.steps]

    def watermarks(
        self, source_us: int | None, before_us: int | None
    ) -> dict[OperatorName, int | None]:
        """The watermark of each operator, given those of the sources now and an epoch before."""
        return self.graph.watermarks(source_us, before_us)

    def forget_plans(self) -> None:
        """Drop the plans: batches come from another session from now on."""
        self._templates.clear()

    def feed(self, point: Point) -> int | None:
        """The number of the feed that a point is; None for others."""
        return self._feeds.get(point)

    def feed_pair(self, point: Point) -> tuple[int, int] | None:
        """The two feeds that a join reads in one pass, if it can."""
        if len(point.inputs) == 2:
            left, right = map(self._feeds.get, point.inputs)
            if left is not None and right is not None and left != right:
                return left, right
        return None

    def _count_reads(self) -> int:
        reads = sum(len(self.graph.readers(feed)) for feed in self.graph.feeds)
        for point in self.graph.operators:
            assert isinstance(point.step, OperatorStep)
            if self.feed_pair(point) is not None:
                reads -= 1
            if point.step.sides and point.inputs[0] not in self._feeds:
                reads += 1
        return reads

    def over(self, df: DataFrame, moment: str, plan_operator: PlanOperator) -> Flow:
        """Plan all steps over a batch; nothing runs yet."""
        flow = Flow()
        try:
            planning = _Planning(self, self._templates, moment, plan_operator, df, flow)
            flow.sinks = [(p.sink, planning.rows(p.point)) for p in self.paths]
        except BaseException:
            flow.release()
            raise
        return flow


@dataclass
class Flow:
    """One epoch's frames: what each sink gets, and what is kept until all have it."""

    sinks: list[tuple[Sink, DataFrame]] = field(default_factory=list)
    kept: list[KeptFrame] = field(default_factory=list)

    def write(self, batch_id: int) -> None:
        """Run everything: every sink gets its rows, in the order in which they were given."""
        for sink, frame in self.sinks:
            sink.write(frame, batch_id)

    def release(self) -> None:
        for kept in self.kept:
            kept.release()


class _Planning:
    """A walk through the graph of one epoch, from its sinks back to the batch."""

    def __init__(
        self,
        pipeline: Pipeline,
        templates: dict[tuple[str, str], PlanTemplate],
        moment: str,
        plan_operator: PlanOperator,
        batch: DataFrame,
        flow: Flow,
    ) -> None:
        self._pipeline = pipeline
        self._templates = templates
        """Plans of rows on their way between operators, by what they do and for whom."""
        self._moment = moment
        self._plan_operator = plan_operator
        self._flow = flow
        self._batch = self._kept(batch) if pipeline.reads_of_batch > 1 else batch
        self._rows: dict[Point, DataFrame] = {}
        self._sent: dict[Point, DataFrame] = {}

    def rows(self, point: Point) -> DataFrame:
        """The rows at a point, for any of its readers."""
        if point not in self._rows:
            self._rows[point] = self._find_rows(point)
        return self._rows[point]

    def _find_rows(self, point: Point) -> DataFrame:
        number = self._pipeline.feed(point)
        if number is not None:
            return self._read(number)
        if isinstance(point.step, OperatorStep):
            return self._pick(point, MAIN_OUTPUT)
        if isinstance(point.step, OutputStep):
            (operator,) = point.inputs
            rows = self._pick(operator, point.step.output)
            # Picked from kept rows, it need not be kept again.
            return rows if self._is_shared(operator) else self._for_readers(point, rows)
        if isinstance(point.step, UnionStep):
            return self._for_readers(point, self._union(point, point.step))
        assert isinstance(point.step, TransformStep)
        (read,) = point.inputs
        function, rows = point.step.function, self.rows(read)
        if point.step.is_fixed:
            place = self._pipeline.graph.points.index(point)
            return self._for_readers(
                point, self._planned(("transform", str(place)), rows, function)
            )
        return self._for_readers(point, function(rows))

    def _is_shared(self, point: Point) -> bool:
        return self._pipeline.graph.is_shared(point)

    def _for_readers(self, point: Point, rows: DataFrame) -> DataFrame:
        return self._kept(rows) if self._is_shared(point) else rows

    def _kept(self, rows: DataFrame) -> DataFrame:
        kept = KeptFrame(rows)
        self._flow.kept.append(kept)
        return kept.frame

    def _pick(self, point: Point, output: str) -> DataFrame:
        """One output of what an operator's shards sent: bare rows again, and planned once."""
        if point not in self._sent:
            assert isinstance(point.step, OperatorStep)
            sent = self._plan_operator(point.step, self._input(point, point.step), self._moment)
            self._sent[point] = self._for_readers(point, sent)
        name = operator_of(point).name
        outputs = self._pipeline.outputs[name]
        if len(outputs) == 1:
            return self._sent[point]
        return self._planned(
            ("output", f"{name}/{output}"), self._sent[point], lambda df: pick(df, outputs, output)
        )

    def _input(self, point: Point, step: OperatorStep) -> DataFrame:
        """What goes into an operator's exchange."""
        if len(point.inputs) == 2:
            return self._pair(point, step.operator.name)
        (read,) = point.inputs
        number = self._pipeline.feed(read)
        if number is not None:
            return self._read(number, step)
        if step.sides:
            return with_broadcast(self.rows(read), step.sides, self._batch)
        return self.rows(read)

    def _read(self, number: int, step: OperatorStep | None = None) -> DataFrame:
        """What an operator, or another reader, gets of the batch."""
        mine: tuple[Side, ...] = () if step is None else step.sides
        batches = self._pipeline.batches
        if batches.is_whole(mine):
            return self._batch
        reader = f"{number}/{step.operator.name if step is not None and mine else ''}"
        return self._planned(
            ("feed", reader), self._batch, lambda batch: batches.rows(batch, number, mine)
        )

    def _pair(self, point: Point, name: OperatorName) -> DataFrame:
        """Both inputs of a join in one frame."""
        feeds = self._pipeline.feed_pair(point)
        if feeds is not None:
            batches = self._pipeline.batches
            return self._planned(
                ("pair", name), self._batch, lambda batch: batches.pair(batch, *feeds)
            )
        inputs = [self.rows(read) for read in point.inputs]

        def wrapped(number: int, side: str) -> DataFrame:
            return self._planned(
                (side, name),
                inputs[number],
                lambda df: wrap(df, number, (LEFT, RIGHT), [rows.schema for rows in inputs]),
            )

        return union([wrapped(0, LEFT), wrapped(1, RIGHT)])

    def _union(self, point: Point, step: UnionStep) -> DataFrame:
        place = self._pipeline.graph.points.index(point)

        def conformed(number: int, read: Point) -> DataFrame:
            rows = self.rows(read)
            if step.as_they_are[number] and is_bare(rows):
                return rows
            return self._planned(
                ("union", f"{place}/{number}"), rows, lambda df: conform(df, step.schema)
            )

        return union([conformed(number, read) for number, read in enumerate(point.inputs)])

    def _planned(
        self, key: tuple[str, str], rows: DataFrame, build: Callable[[DataFrame], DataFrame]
    ) -> DataFrame:
        """What is built of bare rows, planned once; of others, planned for this epoch."""
        if not is_bare(rows):
            return build(rows)
        template = self._templates.get(key)
        if template is None:
            template = self._templates[key] = PlanTemplate(rows, build)
        return template.over(rows, self._moment, "")

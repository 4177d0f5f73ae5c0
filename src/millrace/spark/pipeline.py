"""The pipeline of a query: a tree of steps from one source to one sink or several.

Paths that begin with the same steps share them. Invariant: however many readers a point has, the
steps up to it run once an epoch; what several read is kept until the epoch's end. A point with one
reader keeps nothing, so a query with one sink costs what it would without a tree. Rows of broadcast
streams, which come with the batch, reach only the operators they are for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from millrace.errors import DuplicateNameError
from millrace.ids import OperatorName
from millrace.operators import Operator
from millrace.operators.operator import MAIN_OUTPUT
from millrace.spark.broadcast import Side, input_of
from millrace.spark.outputs import pick
from millrace.spark.sinks import Sink
from millrace.spark.steps import OperatorStep, OutputStep, Step, TransformStep
from millrace.spark.template import KeptFrame, PlanTemplate, is_bare

PlanOperator = Callable[[OperatorStep, DataFrame, str], DataFrame]
"""Plans an operator over a frame, at a moment."""


@dataclass(frozen=True)
class Path:
    """The steps to a sink, and the schema of what it gets."""

    steps: tuple[Step, ...]
    schema: T.StructType
    sink: Sink


@dataclass
class _Point:
    """Where rows are after a step, and who reads them there."""

    step: Step | None
    paths: list[int] = field(default_factory=list)
    """Those that end here."""
    next: list[_Point] = field(default_factory=list)
    others: int = 0
    """How many read these rows further on, beside those that come next."""

    def after(self, step: Step) -> _Point:
        for point in self.next:
            if point.step == step:
                return point
        self.next.append(_Point(step))
        return self.next[-1]

    @property
    def is_shared(self) -> bool:
        return len(self.paths) + len(self.next) + self.others > 1

    @property
    def outputs(self) -> tuple[str, ...]:
        """An operator's outputs that are read, the main one first."""
        sides = [p.step.output for p in self.next if isinstance(p.step, OutputStep)]
        is_main_read = bool(self.paths) or len(self.next) > len(sides)
        return ((MAIN_OUTPUT,) if is_main_read else ()) + tuple(sides)


class Pipeline:
    """The paths of a query, combined."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = tuple(paths)
        self.steps: list[OperatorStep] = []
        self.outputs: dict[OperatorName, tuple[str, ...]] = {}
        """Which outputs of each operator are read."""
        self._root = _Point(None)
        self._picks: dict[tuple[str, str], PlanTemplate] = {}
        for number, path in enumerate(paths):
            point = self._root
            for step in path.steps:
                point = point.after(step)
            point.paths.append(number)
        self._collect(self._root)
        # By name: Spark's offsets are by the number of a source, however the program is arranged.
        self.sides = sorted((s for step in self.steps for s in step.sides), key=lambda s: s.column)
        """The broadcast streams of all operators."""
        first = [point.step for point in self._root.next]
        self._root.others = sum(bool(s.sides) for s in self.steps if s not in first)

    @property
    def operators(self) -> list[Operator]:
        return [step.operator for step in self.steps]

    def _collect(self, point: _Point) -> None:
        if isinstance(point.step, OperatorStep):
            operator = point.step.operator
            if operator.name in self.outputs:
                raise DuplicateNameError(
                    f"two operators are called {operator.name!r}. Give each its own name: it "
                    "identifies the operator's state. If they are meant to be one, keep its stream "
                    "in a variable and build both branches from it."
                )
            self.steps.append(point.step)
            self.outputs[operator.name] = point.outputs
        for following in point.next:
            self._collect(following)

    def watermarks(self, source_us: int | None) -> dict[OperatorName, int | None]:
        """The watermark of each operator, given that of the sources.

        An operator's is what the one before it gives on; the first one's is the sources'.
        """
        found: dict[OperatorName, int | None] = {}

        def visit(point: _Point, watermark_us: int | None) -> None:
            if isinstance(point.step, OperatorStep):
                operator = point.step.operator
                found[operator.name] = watermark_us
                watermark_us = operator.output_watermark(watermark_us)
            for following in point.next:
                visit(following, watermark_us)

        visit(self._root, source_us)
        return found

    def forget_plans(self) -> None:
        """Drop the plans: batches come from another session from now on."""
        self._picks.clear()

    def over(self, df: DataFrame, moment: str, plan_operator: PlanOperator) -> Flow:
        """Plan all steps over a batch; nothing runs yet."""
        planning = _Planning(self._picks, self.outputs, self.sides, moment, plan_operator, batch=df)
        try:
            planning.visit(self._root, df)
        except BaseException:
            planning.flow.release()
            raise
        frames = planning.flow.frames
        planning.flow.sinks = [(p.sink, frames[n]) for n, p in enumerate(self.paths)]
        return planning.flow


@dataclass
class Flow:
    """One epoch's frames: what each sink gets, and what is kept until all have it."""

    frames: dict[int, DataFrame] = field(default_factory=dict)
    sinks: list[tuple[Sink, DataFrame]] = field(default_factory=list)
    kept: list[KeptFrame] = field(default_factory=list)

    def write(self, batch_id: int) -> None:
        """Run everything: every sink gets its rows, in the order in which they were given."""
        for sink, frame in self.sinks:
            sink.write(frame, batch_id)

    def release(self) -> None:
        for kept in self.kept:
            kept.release()


@dataclass
class _Planning:
    """A walk through the tree, from a batch to the frames of all paths."""

    picks: dict[tuple[str, str], PlanTemplate]
    """Plans of parts of rows: (operator, output), or ("", reader) for those of the batch."""
    outputs: dict[OperatorName, tuple[str, ...]]
    sides: list[Side]
    moment: str
    plan_operator: PlanOperator
    batch: DataFrame
    """What Spark handed over, or the same kept."""
    flow: Flow = field(default_factory=Flow)

    def visit(self, point: _Point, df: DataFrame, is_kept: bool = False) -> None:
        if point.is_shared and not is_kept:
            kept = KeptFrame(df)
            self.flow.kept.append(kept)
            df, is_kept = kept.frame, True
        if point.step is None:
            self.batch = df
        main, sides = df, {}
        if isinstance(point.step, OperatorStep):
            name = point.step.operator.name
            sides = {o: self._pick(df, name, o) for o in self.outputs[name]}
            main = sides.pop(MAIN_OUTPUT, df)
        if point.paths:
            self.flow.frames |= dict.fromkeys(point.paths, self._input(main))
        for following in point.next:
            step = following.step
            if isinstance(step, OutputStep):
                # Picked from kept rows, it need not be kept again.
                self.visit(following, sides[step.output], is_kept)
            elif isinstance(step, OperatorStep):
                rows = self._input(main, step)
                self.visit(following, self.plan_operator(step, rows, self.moment))
            else:
                assert isinstance(step, TransformStep)
                self.visit(following, step.function(self._input(main)))

    def _input(self, rows: DataFrame, step: OperatorStep | None = None) -> DataFrame:
        """What an operator, or another reader, gets of rows and of the batch's broadcast rows."""
        mine = () if step is None else step.sides
        if rows is not self.batch or not is_bare(rows) or len(mine) == len(self.sides):
            return input_of(mine, self.sides, rows, self.batch)
        reader = OperatorName("") if step is None else step.operator.name
        return self._planned(
            ("", reader), rows, lambda batch: input_of(mine, self.sides, batch, batch)
        )

    def _pick(self, sent: DataFrame, name: OperatorName, output: str) -> DataFrame:
        """One output of what an operator's shards sent: bare rows again, and planned once."""
        outputs = self.outputs[name]
        if len(outputs) == 1:
            return sent
        return self._planned((name, output), sent, lambda df: pick(df, outputs, output))

    def _planned(
        self, key: tuple[str, str], rows: DataFrame, build: Callable[[DataFrame], DataFrame]
    ) -> DataFrame:
        template = self.picks.get(key)
        if template is None:
            template = self.picks[key] = PlanTemplate(rows, build)
        return template.over(rows, self.moment, "")

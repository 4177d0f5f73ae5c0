"""The graph of a query: watermarks, what Spark's stream brings, and what is shared."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from millrace.errors import DuplicateNameError
from millrace.ids import OperatorName
from millrace.operators.operator import MAIN, TableLayout
from millrace.operators.process.keyed import KeyedOperator
from millrace.spark.graph import Graph, operator_of
from millrace.spark.pipeline import Path, Pipeline
from millrace.spark.steps import OperatorStep, Point, SourceStep, TransformStep, UnionStep

FRAME: Any = "a streaming frame"


class Holding:
    """Lets rows go up to some microseconds after their time."""

    def __init__(self, name: str, by_us: int, everywhere: bool) -> None:
        self.name = OperatorName(name)
        self.tables = {MAIN: TableLayout(pa.schema([]), everywhere=everywhere)}
        self._by_us = by_us

    def output_watermark(self, watermark_us: int | None) -> int | None:
        return None if watermark_us is None else watermark_us - self._by_us


class Running(KeyedOperator):
    """A processor, as far as a graph asks."""

    def __init__(self, name: str) -> None:
        self.name = OperatorName(name)


def source() -> Point:
    return Point(SourceStep(), (), FRAME)


def operator(name: str, *inputs: Point, by_us: int = 0, everywhere: bool = False) -> Point:
    return _point(Holding(name, by_us, everywhere), inputs)


def processor(name: str, *inputs: Point) -> Point:
    return _point(Running(name), inputs)


def _point(operator: Any, inputs: tuple[Point, ...]) -> Point:
    return Point(OperatorStep(operator, lambda df, assignment, scheme: df), inputs)


def transform(read: Point) -> Point:
    return Point(TransformStep(lambda df: df), (read,), read.frame)


def union(*inputs: Point) -> Point:
    stateless = all(read.frame is not None for read in inputs)
    step = UnionStep(T.StructType(), (True,) * len(inputs))
    return Point(step, inputs, FRAME if stateless else None)


def pipeline(*ends: Point) -> Pipeline:
    sink: Any = None
    return Pipeline([Path(end, T.StructType(), sink) for end in ends])


def test_an_operator_has_the_watermark_that_the_one_before_gives_on() -> None:
    start = source()
    first = operator("first", start, by_us=10)
    second = operator("second", transform(first), by_us=5)
    ends = [
        operator("third", second),
        operator("beside", first.output("late")),
        operator("alone", start),
    ]
    graph = Graph(ends)
    assert graph.watermarks(100) == {
        "first": 100,
        "second": 90,
        "third": 85,
        "beside": 90,
        "alone": 100,
    }
    assert set(graph.watermarks(None).values()) == {None}


def test_an_operator_with_several_inputs_has_the_smallest_of_their_watermarks() -> None:
    left = operator("left", source(), by_us=10)
    right = operator("right", source(), by_us=30)
    joined = operator("joined", left, transform(right), by_us=5)
    end = operator("end", union(joined, left, source()))
    assert Graph([end]).watermarks(100) == {"left": 100, "right": 100, "joined": 70, "end": 65}


def test_a_processor_behind_an_operator_has_the_watermark_of_an_epoch_before() -> None:
    start = source()
    joined = operator("joined", start, by_us=10)
    graph = Graph(
        [
            processor("first", transform(start)),
            processor("behind", transform(joined)),
            processor("of both", union(start, joined)),
        ]
    )
    assert graph.watermarks(100, 60) == {
        "joined": 100,
        "first": 100,
        "behind": 50,
        "of both": 50,
    }
    assert graph.watermarks(100)["behind"] == -10
    assert set(graph.watermarks(None).values()) == {None}


def test_stateless_steps_with_one_reader_are_part_of_sparks_stream() -> None:
    one, other = transform(source()), source()
    both = transform(union(one, other))
    graph = Graph([operator("o", both)])
    assert graph.feeds == (both,)
    assert pipeline(operator("o", both)).reads_of_batch == 1


def test_a_source_with_two_readers_is_read_once() -> None:
    start = source()
    kept, others = transform(start), transform(transform(start))
    left, right = operator("left", kept), operator("right", others)
    query = pipeline(left, right)
    assert query.graph.feeds == (start,)
    assert query.batches.feeds == (FRAME,)
    assert query.reads_of_batch == 2


def test_a_union_with_what_is_read_elsewhere_too_is_not_part_of_sparks_stream() -> None:
    shared, alone = source(), source()
    both = union(shared, alone)
    query = pipeline(operator("a", both), operator("b", shared))
    assert set(query.graph.feeds) == {shared, alone}
    assert query.reads_of_batch == 3


def test_a_join_reads_two_sources_in_one_pass() -> None:
    left, right = source(), transform(source())
    assert pipeline(operator("join", left, right)).reads_of_batch == 1
    # With itself, it needs each row twice.
    assert pipeline(operator("join", left, left)).reads_of_batch == 2
    assert pipeline(operator("join", left, operator("o", right))).reads_of_batch == 2


def test_feeds_are_in_the_order_of_operators_names_however_the_program_is_arranged() -> None:
    sources = {name: source() for name in "abcd"}
    joined = operator("b-join", sources["b"], sources["c"])
    first = operator("a-first", transform(sources["a"]))
    plain = transform(sources["d"])
    expected = None
    for ends in itertools.permutations([joined, first, union(joined, first)]):
        feeds = Graph([*ends, plain]).feeds
        expected = expected or feeds
        assert feeds == expected
    assert expected == (first.inputs[0], sources["b"], sources["c"], plain)


def test_points_come_after_their_inputs_and_once() -> None:
    start = source()
    left = operator("left", start)
    diamond = operator("join", left, operator("right", left))
    points = Graph([diamond, left, diamond]).points
    assert len(points) == len(set(points)) == 4
    for number, point in enumerate(points):
        assert all(read in points[:number] for read in point.inputs)


def test_readers_and_outputs() -> None:
    first = operator("first", source())
    late = first.output("late")
    assert first.output("late") is late
    graph = Graph([operator("next", late), late])
    assert graph.outputs(first) == ("late",)
    assert graph.is_shared(late)
    assert not graph.is_shared(first)
    both = Graph([operator("next", first), late])
    assert both.outputs(first) == ("", "late")
    assert both.is_shared(first)
    assert [operator_of(point).name for point in both.operators] == ["first", "next"]


def test_two_operators_of_one_name_are_refused() -> None:
    start = source()
    with pytest.raises(DuplicateNameError, match="two operators are called 'same'"):
        Graph([operator("same", start), operator("same", start)])

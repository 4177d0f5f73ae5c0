"""What operators on graphs do in cases that are worth a name, on real state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import millrace as mr
from millrace import errors
from millrace.ids import OperatorName
from millrace.operators import registry
from millrace.testing import GraphHarness

COMPLETE = [(a, b) for a in range(5) for b in range(a)]
"""All edges of five vertices: ten triangles, each vertex in six."""


def changed(harness: GraphHarness, edges: Any) -> tuple[int, dict[int, int]]:
    emitted = harness.send(edges)
    corners: dict[int, int] = {}
    for vertex, change in emitted.side("corners"):
        corners[vertex] = corners.get(vertex, 0) + change
    return sum(change for _, change in emitted), {v: n for v, n in corners.items() if n}


@pytest.mark.parametrize("colours", [1, 3])
def test_all_edges_of_triangles_may_come_and_go_in_one_epoch(colours: int) -> None:
    harness = GraphHarness("triangles", colours=colours, shards=3)
    assert changed(harness, COMPLETE) == (10, dict.fromkeys(range(5), 6))
    harness.rescale(2)
    # All triangles of vertex 0 lose two edges at once; those of 1, 2 and 0 all three.
    gone = [(v, 0, True) for v in range(1, 5)] + [(1, 2, True)]
    assert changed(harness, gone) == (-8, {0: -6, 1: -5, 2: -5, 3: -4, 4: -4})
    assert changed(harness, [(1, 2), (1, 2, True), (1, 0), (0, 2), (2, 1)]) == (
        3,
        {0: 1, 1: 3, 2: 3, 3: 1, 4: 1},
    )
    assert changed(harness, [(*edge, True) for edge in COMPLETE])[0] == -5
    assert {row["edges"] for row in harness.state()} == {0}
    assert harness.state("vertices") == harness.state("neighbours") == []


def test_loops_are_in_no_triangle() -> None:
    harness = GraphHarness("triangles")
    assert changed(harness, [(1, 2), (2, 2), (1, 1)]) == (0, {})


def test_a_loop_counts_twice_and_makes_a_neighbour() -> None:
    harness = GraphHarness("degrees")
    emitted = harness.send([(1, 1), (1, 2), (1, 1)])
    assert sorted(emitted) == [(1, 3, None), (2, 1, None)]
    assert sorted(emitted.side("neighbours")) == [(1, 1, True), (1, 2, True), (2, 1, True)]
    assert harness.send([(1, 1, True)]) == [(1, 1, 3)]


def test_a_vertex_without_edges_stays() -> None:
    harness = GraphHarness("degrees", vertex="string")
    assert sorted(harness.send([("a", "b"), ("b", "a", True)])) == [("a", 0, None), ("b", 0, None)]
    # The removal of an edge that is not there makes no vertices.
    assert harness.send([("a", "b", True), ("c", "d", True), (None, "e")]) == []
    assert sorted(row["vertex"] for row in harness.state()) == ["a", "b"]


def test_an_odd_cycle_takes_the_sides_of_a_component_for_good() -> None:
    harness = GraphHarness("bipartite", shards=2)
    assert sorted(harness.send([(3, 2), (2, 1)])) == [(1, 1, 0), (2, 1, 1), (3, 1, 0)]
    assert sorted(harness.send([(9, 9)])) == [(9, 9, None)]
    assert sorted(harness.send([(1, 3)])) == [(1, 1, None), (2, 1, None), (3, 1, None)]
    assert sorted(harness.send([(0, 3)])) == [
        (0, 0, None), (1, 0, None), (2, 0, None), (3, 0, None)
    ]  # fmt: skip


def test_an_odd_cycle_may_come_in_one_epoch() -> None:
    harness = GraphHarness("bipartite", shards=2)
    # One input partition has the whole cycle; of the other component it has an even one.
    cycle, square = [(1, 2), (2, 3), (3, 1)], [(5, 6), (6, 7), (7, 8), (8, 5)]
    sides = {vertex: side for vertex, _, side in harness.send([*cycle, *square])}
    assert sides == {1: None, 2: None, 3: None, 5: 0, 6: 1, 7: 0, 8: 1}


def test_a_component_is_called_after_its_smallest_vertex() -> None:
    harness = GraphHarness("components", vertex="string", shards=3)
    harness.send([("m", "n"), ("x", "y"), ("y", "z")])
    harness.rescale(1)
    harness.reopen()
    assert sorted(harness.send([("z", "n")])) == [("x", "m"), ("y", "m"), ("z", "m")]
    assert harness.send([("m", "z"), ("x", "x")]) == []


@pytest.mark.parametrize(
    ("what", "part", "value"),
    [("degrees", "directed", True), ("bipartite", "sides", False), ("triangles", "colours", 5)],
)
def test_what_state_depends_on_cannot_change(what: str, part: str, value: Any) -> None:
    operator = GraphHarness(what)._operator
    spec = operator.spec()
    assert registry.from_spec(OperatorName("tested"), spec).spec() == spec
    registry.check_spec(spec)
    registry.check_change(operator.name, spec, dict(spec))
    with pytest.raises(errors.SchemaChangedError, match="new checkpointLocation"):
        registry.check_change(operator.name, spec, {**spec, part: value})
    with pytest.raises(errors.MalformedError):
        registry.check_spec({**spec, part: "no"})


def test_components_take_an_epoch_at_once() -> None:
    harness = GraphHarness("components")
    harness.send([(1, 2)])
    times = harness._shards.times()
    (shard,) = harness._shards.open(times)
    moment = replace(harness._shards.moment(times), more=True)
    rows: Any = None
    with pytest.raises(errors.EpochFailedError, match="several steps"):
        harness._operator.apply(shard.replicas, rows, shard.groups, moment)


def test_a_graph_is_read_only_where_one_is_kept() -> None:
    harness = GraphHarness("components")
    harness.send([(1, 2)])
    with pytest.raises(errors.GraphError, match="no graph is kept"):
        mr.graphs.read(harness.location)
    with pytest.raises(errors.UsageError, match="there are"):
        GraphHarness("cliques")
    kept = GraphHarness("degrees")
    kept.send([(1, 2)])
    with mr.graphs.read(kept.location) as graph:
        assert graph.neighbours(1, 7).to_pylist() == [{"vertex": 1, "neighbour": 2}]
        with pytest.raises(errors.GraphError, match="hops"):
            graph.neighbourhood(1, hops=3)
        assert graph.neighbourhood(7).num_rows == 0
        kept.send([(2, 3)])
        assert graph.paths(1, 3) == []
        assert graph.refresh().paths(1, 3) == [(1, 2, 3)]

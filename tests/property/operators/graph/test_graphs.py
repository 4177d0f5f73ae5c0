"""Operators on graphs over random edges, epochs, restarts and parallelism, against networkx.

After every epoch all rows of state are compared with what networkx says of the graph so far, and
what was emitted with the difference from the epoch before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millrace as mr
from millrace.log.segment import encoding
from millrace.operators.graph import common
from millrace.state import merging
from millrace.testing import GraphHarness

VERTEX = st.integers(0, 11)
ENDS = st.tuples(st.none() | VERTEX, VERTEX)
PLACED = st.integers(0, 2)
"""The input partition of a row."""
FEW = settings(max_examples=max(1, settings().max_examples // 3))
"""An example is many epochs, each of which is compared as a whole."""
ADDS = st.lists(st.tuples(ENDS, st.just(False), PLACED), max_size=12)
MOVES = st.lists(st.tuples(ENDS, st.sampled_from([False, False, True]), PLACED), max_size=14)

NEAR = st.tuples(st.integers(0, 5), st.integers(0, 5))
CLOSE = st.lists(st.tuples(NEAR, st.booleans(), PLACED), max_size=14)
"""Edges of few vertices, so that triangles come and go, several edges of one at once."""


def epochs(rows: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Rows, shards, and whether the query is restarted first."""
    return st.lists(st.tuples(rows, st.integers(1, 4), st.booleans()), min_size=1, max_size=7)


@contextmanager
def small_pages() -> Iterator[None]:
    """Merges, runs and pages that small states reach, and rounds of few candidates."""
    with (
        patch.object(merging, "RUN_PIECES", 3),
        patch.object(merging, "LOG_PIECES", 0),
        patch.object(encoding, "PAGE_ROWS", 4),
        patch.object(common, "ROUND", 5),
    ):
        yield


def run(
    harness: GraphHarness,
    graph: Any,
    listed: Any,
    check: Callable[[mr.testing.Emitted], None],
    names: Callable[[int | None], Any] = lambda number: number,
) -> None:
    """Send all epochs to an operator and to networkx, and compare after each."""
    with small_pages():
        for rows, shards, is_restart in listed:
            harness.rescale(shards)
            if is_restart:
                harness.reopen()
            rows = sorted(rows, key=lambda row: row[2])
            sent = [(names(ends[0]), names(ends[1]), gone) for ends, gone, _ in rows]
            for first, second, gone in sent:
                if first is None:
                    continue
                if not gone:
                    graph.add_edge(first, second)
                elif graph.has_edge(first, second):
                    graph.remove_edge(first, second)
            check(harness.send(sent, part=[part for *_, part in rows]))


def kept(harness: GraphHarness, *columns: str, state: str | None = None) -> list[tuple[Any, ...]]:
    """All rows as readers see them."""
    if harness._shards.trail.epoch == 0:
        return []
    with mr.open(harness.location) as reader:
        table = reader.to_arrow("tested", state=state, columns=columns)
    return sorted(tuple(row.values()) for row in table.to_pylist())


@given(epochs(MOVES))
@FEW
def test_degrees_and_neighbours_are_those_of_networkx(listed: Any) -> None:
    harness, graph, before = GraphHarness("degrees"), nx.Graph(), dict[int, int]()
    edges: set[tuple[int, int]] = set()

    def check(emitted: mr.testing.Emitted) -> None:
        degrees = dict(graph.degree)
        assert kept(harness, "vertex", "degree") == sorted(degrees.items())
        changed = [(v, d, before.get(v)) for v, d in degrees.items() if before.get(v) != d]
        assert sorted(emitted) == sorted(changed)
        both = {(v, w) for v in graph for w in graph[v]}
        assert kept(harness, "vertex", "neighbour", state="neighbours") == sorted(both)
        moves = [(*e, True) for e in both - edges] + [(*e, False) for e in edges - both]
        assert sorted(emitted.side("neighbours")) == sorted(moves)
        before.update(degrees)
        edges.clear()
        edges.update(both)

    run(harness, graph, listed, check)


@given(epochs(MOVES))
@FEW
def test_directed_degrees_are_those_of_networkx(listed: Any) -> None:
    harness, graph = GraphHarness("degrees", directed=True, vertex="string"), nx.DiGraph()

    def check(emitted: mr.testing.Emitted) -> None:
        degrees = [(v, d, graph.in_degree[v], graph.out_degree[v]) for v, d in graph.degree]
        shown = kept(harness, "vertex", "degree", "in_degree", "out_degree")
        assert shown == sorted(degrees)
        ways = [(v, w, True) for v, w in graph.edges] + [(w, v, False) for v, w in graph.edges]
        found = kept(harness, "vertex", "neighbour", "outgoing", state="neighbours")
        assert found == sorted(ways)

    run(harness, graph, listed, check, lambda n: None if n is None else f"vertex {n}")


def components_of(graph: Any) -> dict[Any, tuple[Any, int | None]]:
    """The smallest vertex of each vertex's component, and the vertex's side."""
    found = {}
    for vertices in nx.connected_components(graph):
        part = graph.subgraph(vertices)
        smallest = min(vertices)
        steps = nx.single_source_shortest_path_length(part, smallest)
        two_sided = nx.is_bipartite(part)
        found |= {v: (smallest, steps[v] % 2 if two_sided else None) for v in vertices}
    return found


@pytest.mark.parametrize("what", ["components", "bipartite"])
@given(epochs(ADDS), st.booleans())
@FEW
def test_components_and_sides_are_those_of_networkx(what: str, listed: Any, text: bool) -> None:
    harness = GraphHarness(what, vertex="string" if text else "long")
    graph, before = nx.Graph(), dict[Any, Any]()
    columns = ("component", "side") if what == "bipartite" else ("component",)

    def check(emitted: mr.testing.Emitted) -> None:
        found = {v: row[: len(columns)] for v, row in components_of(graph).items()}
        assert {v: tuple(row) for v, *row in kept(harness, "vertex", *columns)} == found
        changed = {v: row for v, row in found.items() if before.get(v) != row}
        assert {v: tuple(row) for v, *row in emitted} == changed
        assert len(emitted) == len(changed)
        before.update(found)

    names: Callable[[int | None], Any] = lambda number: number  # noqa: E731
    if text:
        names = lambda number: None if number is None else chr(97 + number)  # noqa: E731
    run(harness, graph, listed, check, names)


@given(epochs(CLOSE), st.integers(1, 4))
@FEW
def test_triangles_are_those_of_networkx(listed: Any, colours: int) -> None:
    harness, graph = GraphHarness("triangles", colours=colours), nx.Graph()
    total, corners = [0], dict[int, int]()

    def check(emitted: mr.testing.Emitted) -> None:
        simple = nx.Graph(graph)
        simple.remove_edges_from(list(nx.selfloop_edges(simple)))
        expected = nx.triangles(simple)
        total[0] += sum(change for _, change in emitted)
        for vertex, change in emitted.side("corners"):
            corners[vertex] = corners.get(vertex, 0) + change
        assert {v: n for v, n in corners.items() if n} == {v: n for v, n in expected.items() if n}
        assert total[0] == sum(expected.values()) // 3
        assert sum(n for _, n in kept(harness, "part", "triangles")) == total[0]

    run(harness, graph, listed, check)


@given(epochs(MOVES), VERTEX, VERTEX, st.booleans())
@FEW
def test_look_ups_follow_the_edges(listed: Any, first: int, last: int, directed: bool) -> None:
    harness = GraphHarness("degrees", directed=directed)
    graph = nx.DiGraph() if directed else nx.Graph()

    def check(emitted: mr.testing.Emitted) -> None:
        if not graph:
            return
        with mr.graphs.read(harness.location) as found:
            steps = (
                nx.single_source_shortest_path_length(graph, first, cutoff=2)
                if first in graph
                else {}
            )
            near = {v: n for v, n in steps.items() if v != first}
            listed = found.neighbourhood(first).to_pydict()
            assert dict(zip(listed["vertex"], listed["hops"], strict=True)) == near
            once = found.neighbourhood(first, hops=1).to_pydict()["vertex"]
            assert once == sorted(v for v, n in near.items() if n == 1)
            paths = [(first, last)] if graph.has_edge(first, last) else []
            for middle in sorted(set(graph) - {first, last}):
                if graph.has_edge(first, middle) and graph.has_edge(middle, last):
                    paths.append((first, middle, last))
            assert found.paths(first, last) == paths

    run(harness, graph, listed, check)

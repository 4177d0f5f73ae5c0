"""Graphs in a query: all operators over one stream of edges, rescaled live, beside networkx."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from pyspark.sql import SparkSession
from tests.spark import support

import millrace as mr
from millrace import errors

SCHEMA = "src string, dst string, gone boolean"
VERTICES = 30


def edges_of(seed: int, count: int, share_removed: float) -> list[tuple[Any, ...]]:
    chance = random.Random(seed)
    rows: list[tuple[Any, ...]] = [(None, "a", False), ("a", None, None)]
    for _ in range(count):
        ends = (f"v{chance.randrange(VERTICES)}" for _ in range(2))
        rows.append((*ends, chance.random() < share_removed or None))
    return rows


def apply(graph: Any, rows: list[tuple[Any, ...]], *, removes: bool) -> None:
    for first, second, gone in rows:
        if first is None or second is None:
            continue
        if not (removes and gone):
            graph.add_edge(first, second)
        elif graph.has_edge(first, second):
            graph.remove_edge(first, second)


def test_all_operators_agree_with_networkx_across_a_rescale(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = support.Folder(tmp_path / "in", SCHEMA)
    stream = mr.stream(folder.stream(spark))
    moving = mr.graphs.edges(stream, "src", "dst", removed="gone")
    growing = mr.graphs.edges(stream, "src", "dst")
    degrees = mr.graphs.degrees(moving, name="degrees")
    distribution = mr.graphs.degree_distribution(degrees, name="distribution")
    sides = mr.graphs.bipartite(growing, name="sides")
    estimate = mr.graphs.triangle_count(moving, sample=1.0, name="estimate")
    totals: support.Outputs = {}
    query = (
        distribution.to("noop")
        .also(sides.to("noop"))
        .also(estimate.for_each_batch(support.record(totals)))
        .start(str(tmp_path / "location"), parallelism=2)
    )
    graph, grown = nx.Graph(), nx.Graph()
    try:
        for number in range(3):
            rows = edges_of(number, 40, 0.3 if number else 0.0)
            if number == 2:
                # A long path, so that components of many vertices get another name.
                rows += [(f"v{i}", f"v{i + 1}", None) for i in range(VERTICES)]
            folder.drop(rows)
            apply(graph, rows, removes=True)
            apply(grown, rows, removes=False)
            query.process_all_available()
            check(query, graph, grown)
            if number == 0:
                query.rescale(3).wait()
        with mr.graphs.read(query, "degrees") as kept:
            vertex = max(graph, key=graph.degree)
            near = nx.single_source_shortest_path_length(graph, vertex, cutoff=2)
            assert kept.neighbourhood(vertex).num_rows == len(near) - 1
        last = [table.to_pylist() for table in totals.values() if table.num_rows][-1]
        assert last == [{"triangles": float(triangles_of(graph))}]
    finally:
        query.stop()


def triangles_of(graph: Any) -> int:
    simple = nx.Graph(graph)
    simple.remove_edges_from(list(nx.selfloop_edges(simple)))
    return int(sum(nx.triangles(simple).values())) // 3


def check(query: mr.Query, graph: Any, grown: Any) -> None:
    def found(sql: str) -> dict[Any, Any]:
        table = query.sql(sql)
        return dict(zip(*(table.column(i).to_pylist() for i in range(2)), strict=True))

    assert found("SELECT vertex, degree FROM degrees") == dict(graph.degree)
    histogram = nx.degree_histogram(graph)
    assert found("SELECT degree, vertices FROM distribution WHERE vertices > 0") == {
        degree: count for degree, count in enumerate(histogram) if count
    }
    both = "SELECT vertex, count(*) FROM degrees.neighbours GROUP BY 1"
    assert found(both) == {v: len(graph[v]) for v in graph if len(graph[v])}
    labels = {v: min(part) for part in nx.connected_components(grown) for v in part}
    assert found("SELECT vertex, component FROM sides") == labels
    two_sided = {part: nx.is_bipartite(grown.subgraph(part)) for part in map(
        frozenset, nx.connected_components(grown)
    )}  # fmt: skip
    has_side = {v: is_two for part, is_two in two_sided.items() for v in part}
    assert found("SELECT vertex, side IS NOT NULL FROM sides") == has_side
    for first, second in grown.edges:
        assert has_side[first] == has_side[second]


MISTAKES: dict[str, tuple[type[Exception], Callable[[Any], Any], str]] = {
    "no such column": (
        errors.UnknownColumnError,
        lambda df: mr.graphs.edges(df, "src", "to"),
        "no column 'to'",
    ),
    "one column": (errors.GraphError, lambda df: mr.graphs.edges(df, "src", "src"), "two columns"),
    "two types": (errors.GraphError, lambda df: mr.graphs.edges(df, "src", "n"), "Cast one"),
    "a type": (errors.GraphError, lambda df: mr.graphs.edges(df, "x", "x2"), "be a vertex"),
    "a collation": (errors.GraphError, lambda df: mr.graphs.edges(df, "c", "c2"), "be a vertex"),
    "removed": (
        errors.GraphError,
        lambda df: mr.graphs.edges(df, "src", "dst", removed="n"),
        "must be boolean",
    ),
    "a batch": (
        errors.NotStreamingError,
        lambda df: mr.graphs.edges(df.sparkSession.range(1), "id", "id"),
        "batch DataFrame",
    ),
    "removals": (
        errors.GraphError,
        lambda df: mr.graphs.components(mr.graphs.edges(df, "src", "dst", removed="gone")),
        "without removed=",
    ),
    "no edges": (errors.GraphError, mr.graphs.degrees, "mr.graphs.edges"),
    "a share": (
        errors.GraphError,
        lambda df: mr.graphs.triangle_count(mr.graphs.edges(df, "src", "dst"), sample=0),
        "at most 1",
    ),
    "colours": (
        errors.GraphError,
        lambda df: mr.graphs.triangles(mr.graphs.edges(df, "src", "dst"), colours=17),
        "from 1 to 16",
    ),
    "no degrees": (
        errors.GraphError,
        lambda df: mr.graphs.degree_distribution(mr.stream(df)),
        "what degrees\\(\\) returned",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_found_before_anything_starts(
    mistake: str, spark: SparkSession, tmp_path: Path
) -> None:
    error, attempt, message = MISTAKES[mistake]
    columns = "src string, dst string, n long, gone boolean, x double, x2 double"
    df = support.Folder(tmp_path / "in", columns).stream(spark)
    df = df.selectExpr("*", "src COLLATE UTF8_LCASE AS c", "dst COLLATE UTF8_LCASE AS c2")
    with pytest.raises(error, match=message):
        attempt(df)

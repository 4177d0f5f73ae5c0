"""What `bench graphs` expects of a graph."""

from __future__ import annotations

import networkx as nx
import pytest

from millrace_lab.bench.graphs import answer_of, deviation

# Four vertices with all edges, one of them with a loop, and a path of three.
GRAPH = nx.Graph([*nx.complete_graph(4).edges, (0, 0), (10, 11), (11, 12)])


def test_answers_are_those_of_the_queries() -> None:
    assert answer_of("degrees", GRAPH) == [
        {"degree": 1, "vertices": 2},
        {"degree": 2, "vertices": 1},
        {"degree": 3, "vertices": 3},
        {"degree": 5, "vertices": 1},
    ]
    assert answer_of("components", GRAPH) == [
        {"size": 3, "components": 1},
        {"size": 4, "components": 1},
    ]
    assert answer_of("bipartite", GRAPH) == [
        {"side": 0, "vertices": 2},
        {"side": 1, "vertices": 1},
        {"side": None, "vertices": 4},
    ]
    assert answer_of("triangles", GRAPH) == [{"triangles": 4}]
    assert answer_of("triangles_sampled", GRAPH) == 4


def test_triangles_with_a_common_edge_vary_alike() -> None:
    # Four triangles, and six pairs of them that share an edge.
    alone, pair = 0.1**3 - 0.1**6, 0.1**5 - 0.1**6
    assert deviation(GRAPH) == pytest.approx((4 * alone + 12 * pair) ** 0.5 / 0.1**3)

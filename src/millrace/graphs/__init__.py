"""Graphs: operators over streams of edges, and look-ups in the graph that they keep.

edges = mr.graphs.edges(spark.readStream..., "src", "dst", removed="gone")
mr.graphs.degrees(edges).to("noop").start("graph")
mr.graphs.read("graph").neighbourhood(7, hops=2)
"""

from millrace.graphs.edges import Edges, edges
from millrace.graphs.look_ups import Graph, read
from millrace.graphs.streams import (
    bipartite,
    components,
    degree_distribution,
    degrees,
    neighbours,
    triangle_count,
    triangles,
)

__all__ = [
    "Edges",
    "Graph",
    "bipartite",
    "components",
    "degree_distribution",
    "degrees",
    "edges",
    "neighbours",
    "read",
    "triangle_count",
    "triangles",
]

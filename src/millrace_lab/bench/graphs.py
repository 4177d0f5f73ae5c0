"""Operators on graphs over edges of a power law: edges per second, memory, queries meanwhile.

First every case runs over few edges, and what SQL says of its state is compared with networkx.
Then it is timed with an epoch of a million edges after the other, from an empty graph on, while the
state is queried. There is no other side: neither Spark nor Flink has such operators.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from typing import Any

import networkx as nx
import pyarrow.parquet as pq

from millrace_lab.bench._benchmark import Benchmark
from millrace_lab.bench._contract import Result
from millrace_lab.bench._side_process import SideProcess
from millrace_lab.bench._sides.graphs import CASES, SAMPLE
from millrace_lab.bench._sizes import size_name
from millrace_lab.bench._usage import cost, sampling

NAME = "graphs"
VERIFY_EPOCHS = 3
EDGES_PER_VERTEX = 10
SIGMAS = 6
"""How far an estimate may be from the truth, in standard deviations."""


@dataclass(frozen=True)
class Options:
    """Sizes of a run."""

    cases: tuple[str, ...] = tuple(CASES)
    edges: int = 10_000_000
    rows: int = 1_000_000
    """Edges per epoch."""
    verify_rows: int = 2_000

    def quick(self) -> Options:
        return replace(
            self,
            edges=min(self.edges, 100_000),
            rows=min(self.rows, 25_000),
            verify_rows=min(self.verify_rows, 500),
        )


class Graphs(Benchmark[Options]):
    """One run of the benchmark."""

    name = NAME

    def run(self) -> Result:
        with SideProcess("graphs-millrace", self._workdir) as side:
            self._steps.step("starting the side")
            self._result.versions |= side.call("ready")
            for case in self._options.cases:
                self._verify(side, case)
            if self._result.equal:
                for case in self._options.cases:
                    self._measure(side, case)
        return self._result

    def _verify(self, side: SideProcess, case: str) -> None:
        rows = self._options.verify_rows
        vertices = rows * VERIFY_EPOCHS // EDGES_PER_VERTEX
        self._steps.step(f"{case}: comparing the state with networkx")
        found = side.call(
            "timed",
            case=case,
            rows=rows,
            vertices=vertices,
            warm=0,
            epochs=VERIFY_EPOCHS,
            name=f"{case}-verify",
        )
        path = self._workdir / f"{case}.parquet"
        side.call("input", number=found["edges"], vertices=vertices, path=str(path))
        ends = pq.read_table(path)
        graph = nx.Graph()
        graph.add_edges_from(zip(*(column.to_pylist() for column in ends.columns), strict=True))
        expected, answer = answer_of(case, graph), found["answer"]
        if case == "triangles_sampled":
            estimate = answer[0]["triangles"] / SAMPLE**3
            self._result.compare(
                f"{case}: about {estimate:.0f} triangles are too far from {expected}",
                abs(estimate - expected) <= SIGMAS * deviation(graph),
            )
            return
        self._result.compare(f"{case}: {str(answer)[:200]} is not {str(expected)[:200]}",
                             answer == expected)  # fmt: skip

    def _measure(self, side: SideProcess, case: str) -> None:
        options, result = self._options, self._result
        epochs = max(1, options.edges // options.rows)
        size = size_name(options.edges)
        self._steps.step(f"{case}: {epochs} epochs of {size_name(options.rows)} edges")
        with sampling(side.session) as samples:
            found = side.call(
                "timed",
                case=case,
                rows=options.rows,
                vertices=options.edges // EDGES_PER_VERTEX,
                warm=0,
                epochs=epochs,
                name=f"{case}-timed",
            )
            taken = samples()
        timed = found["epochs"]
        seconds = sum(epoch["ms"] for epoch in timed) / 1000
        used = cost(taken, taken[0].at, taken[-1].at)
        result.figure(f"edges_per_s.{case}.{size}", len(timed) * options.rows / seconds)
        result.figure(f"last_epoch_ms.{case}.{size}", timed[-1]["ms"])
        result.figure(f"peak_mb.{case}.{size}", used.peak_bytes / 1e6)
        result.figure(f"queries_beside.{case}.{size}", len(found["query_s"]))
        if found["query_s"]:
            result.figure(f"query_s.{case}.{size}", statistics.median(found["query_s"]))


def answer_of(case: str, graph: Any) -> Any:
    """What the query of a case must say of a graph."""
    if case == "degrees":
        histogram = enumerate(nx.degree_histogram(graph))
        return [{"degree": d, "vertices": n} for d, n in histogram if n]
    if case == "components":
        sizes = [len(part) for part in nx.connected_components(graph)]
        return [{"size": s, "components": sizes.count(s)} for s in sorted(set(sizes))]
    if case == "bipartite":
        sides: dict[int | None, int] = {}
        for part in nx.connected_components(graph):
            within = graph.subgraph(part)
            steps = nx.single_source_shortest_path_length(within, min(part))
            two_sided = nx.is_bipartite(within)
            for vertex in part:
                side = steps[vertex] % 2 if two_sided else None
                sides[side] = sides.get(side, 0) + 1
        ordered = sorted(sides, key=lambda side: 2 if side is None else side)
        return [{"side": side, "vertices": sides[side]} for side in ordered]
    total = sum(triangles_of(graph).values()) // 3
    return total if case == "triangles_sampled" else [{"triangles": total}]


def triangles_of(graph: Any) -> dict[int, int]:
    """How many triangles each vertex is in; loops do not matter."""
    simple = nx.Graph(graph)
    simple.remove_edges_from(list(nx.selfloop_edges(simple)))
    found: dict[int, int] = nx.triangles(simple)
    return found


def deviation(graph: Any) -> float:
    """The standard deviation of the estimate of a sample: triangles that share edges vary alike."""
    simple = nx.Graph(graph)
    simple.remove_edges_from(list(nx.selfloop_edges(simple)))
    total = sum(nx.triangles(simple).values()) // 3
    shared = [len(set(simple[u]) & set(simple[v])) for u, v in simple.edges]
    pairs = sum(count * (count - 1) for count in shared)
    variance = total * (SAMPLE**3 - SAMPLE**6) + pairs * (SAMPLE**5 - SAMPLE**6)
    return float(variance**0.5 / SAMPLE**3)


run = Graphs.measure

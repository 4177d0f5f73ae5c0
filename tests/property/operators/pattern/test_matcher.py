"""The matcher compared with backtracking: random patterns over rows that come in several steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from tests.property.operators.pattern.oracle import Backtracking, Path
from tests.property.operators.pattern.patterns import patterns, rows

from millrace.operators.pattern import tree
from millrace.operators.pattern.automaton import compile_pattern
from millrace.operators.pattern.expressions import Expression
from millrace.operators.pattern.matcher import (
    After,
    Found,
    Matcher,
    OrderedRows,
    Partials,
    no_partials,
)
from millrace.operators.pattern.program import compile_conditions

TYPES = {"kind": pa.string(), "whole": pa.int64(), "double": pa.float64()}

Pattern = tuple[tree.Sequence, dict[str, Expression | None], int, After]


def matcher(pattern: Pattern) -> Matcher:
    sequence, conditions, within, after = pattern
    automaton = compile_pattern(sequence)
    programs = compile_conditions(conditions, automaton.variables, TYPES)
    return Matcher(automaton, programs, {}, within, after)


def run(
    matching: Matcher, listed: list[dict[str, Any]], due: list[bool], state: Partials, until: int
) -> Found:
    given = OrderedRows(
        np.asarray([0, len(listed)]),
        np.asarray([row["at"] for row in listed], np.int64),
        np.zeros(len(listed), np.int64),
        np.asarray(due, np.bool_),
        {name: pa.array([row[name] for row in listed], kind) for name, kind in TYPES.items()},
    )
    return matching.run(given, state, until)


def listed_paths(found: Found, which: Any, names: tuple[str, ...]) -> list[Path]:
    return [
        tuple((names[variable], int(row)) for variable, row in found.paths[first:last])
        for _, first, last in which.tolist()
    ]


def after_step(found: Found, state: Partials) -> Partials:
    """Partial matches as they would be stored and loaded again."""
    starts, nodes, threads = [], [], []

    def add(row: int, deadline: int, best: int, of: Any, threads_of: Any) -> None:
        of_nodes, of_threads = len(nodes), len(threads)
        bounds = [of_nodes, of_nodes + len(of), of_threads, of_threads + len(threads_of)]
        starts.append([row, deadline, best, *bounds])
        nodes.extend(of)
        threads.extend(threads_of)

    changed = {}
    for _, row, deadline, best, before, *bounds in found.kept.tolist():
        changed[row] = (
            row,
            deadline,
            best,
            found.nodes[bounds[0] : bounds[1]].tolist(),
            found.threads[bounds[2] : bounds[3]].tolist(),
        )
        assert before == -1 or not found.gone[before]
    for number, (row, deadline, best, *bounds) in enumerate(state.starts.tolist()):
        if not found.gone[number] and row not in changed:
            changed[row] = (
                row,
                deadline,
                best,
                state.nodes[bounds[0] : bounds[1]].tolist(),
                state.threads[bounds[2] : bounds[3]].tolist(),
            )
    for row in sorted(changed):
        add(*changed[row])
    return Partials(
        np.asarray([0, len(starts)]),
        np.asarray(starts, np.int64).reshape(-1, 7),
        np.asarray(nodes, np.int64).reshape(-1, 3),
        np.asarray(threads, np.int64).reshape(-1, 2),
    )


@given(
    patterns(),
    st.lists(st.tuples(rows, st.integers(0, 3)), max_size=14),
    st.lists(st.integers(0, 14), max_size=3),
)
def test_finds_what_backtracking_finds(
    pattern: Pattern, given_rows: list[tuple[dict[str, Any], int]], cuts: list[int]
) -> None:
    now, listed = 0, []
    for row, pause in given_rows:
        now += pause
        listed.append({**row, "at": now})
    sequence, conditions, within, after = pattern
    expected = Backtracking(sequence, conditions, within, listed, "at").results(after)

    matching = matcher(pattern)
    names = matching.automaton.variables
    matches: list[Path] = []
    timeouts: list[Path] = []
    state = no_partials(1)
    done = 0
    # A step ends where time does, so that rows of one time are not torn apart.
    ends = sorted({cut for cut in cuts if 0 < cut < len(listed)})
    ends = [e for e in ends if listed[e]["at"] > listed[e - 1]["at"]]
    for end in [*ends, len(listed)]:
        is_last = end == len(listed)
        until = now + within if is_last else listed[end]["at"] - 1
        found = run(matching, listed[:end], [i >= done for i in range(end)], state, until)
        matches += listed_paths(found, found.matches, names)
        timeouts += listed_paths(found, found.timeouts, names)
        state = after_step(found, state)
        done = end
    assert not len(state.starts)
    assert sorted(matches) == sorted(expected.matches)
    assert sorted(timeouts) == sorted(expected.timeouts)
    assert len(set(matches)) == len(matches)

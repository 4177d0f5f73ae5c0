"""What a pattern operator keeps, and what a reader shows of it. Pure Arrow.

* the main table: rows that the watermark has not reached, as they came;
* `matched`: rows that were taken by a partial match, as long as one could need them;
* `partial`: a row per start of a match that is not settled, with its partial matches: the rows
  taken, as a tree, and the states that they wait in.

Rows of the second and the third belong to their key (`TableLayout.owned`). All of them go by
themselves when the watermark passes them: a start after the pattern's time, and what was taken no
earlier than all starts that can have taken it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from millrace.operators.join.layout import EVENT, fields_of, row_table
from millrace.operators.operator import MAIN, Moment, ResultColumn, StateLayout, TableLayout
from millrace.operators.pattern.automaton import compile_pattern
from millrace.operators.pattern.tree import Sequence as PatternSequence
from millrace.operators.pattern.tree import variables
from millrace.state.eviction import Eviction

KIND = "pattern"

MATCHED, PARTIAL = "matched", "partial"

MASK = "pattern.mask"
"""Which conditions a row meets, a bit each."""
NUMBER = "pattern.number"
"""What identifies a row among those of its key."""
START = "pattern.start"
"""The number of a start's row."""
STARTED, DEADLINE = "pattern.started", "pattern.deadline"
"""When a start's row was, and when its time is over, in microseconds."""
BEST = "pattern.best"
"""The last node of the best match so far, or a negative number."""
NODE_ROWS, NODE_VARIABLES = "pattern.rows", "pattern.variables"
NODE_PARENTS = "pattern.parents"
THREAD_STATES, THREAD_NODES = "pattern.states", "pattern.nodes"

_LISTS = (NODE_ROWS, NODE_VARIABLES, NODE_PARENTS, THREAD_STATES, THREAD_NODES)
OWN_COLUMNS = (MASK, NUMBER, START, STARTED, DEADLINE, BEST, *_LISTS)

_NUMBERS = pa.list_(pa.int64())
_TIME = pa.timestamp("us", "UTC")
_NAMES = pa.list_(pa.string())


def tables(keys: Sequence[pa.Field], columns: Sequence[pa.Field]) -> dict[str, TableLayout]:
    """The tables of a pattern, by name."""
    mask = pa.field(MASK, pa.int64())
    own = [pa.field(EVENT, pa.int64()), pa.field(NUMBER, pa.int64())]
    partial = [pa.field(name, pa.int64()) for name in (START, STARTED, DEADLINE, BEST)]
    partial += [pa.field(name, _NUMBERS) for name in _LISTS]
    return {
        MAIN: row_table(keys, [*columns, mask]),
        MATCHED: TableLayout(pa.schema([*keys, *columns, *own]), owned=True, evicts=True),
        PARTIAL: TableLayout(pa.schema([*keys, *partial]), owned=True, evicts=True),
    }


def limit(table: str, within_us: int, watermark_us: int) -> int:
    """Rows of a table with an earlier time are over when the watermark is here."""
    # The earliest start that is left has a deadline after the watermark.
    return watermark_us + (2 - within_us if table == MATCHED else 1)


def eviction(table: str, within_us: int, moment: Moment) -> Eviction:
    """The rows of a table that are over at a moment."""
    column = DEADLINE if table == PARTIAL else EVENT
    return Eviction(column, limit(table, within_us, moment.watermark_us or 0))


def describe(keys: Sequence[pa.Field], spec: Mapping[str, Any]) -> StateLayout:
    """The tables of a pattern, and the rows that wait as results."""
    columns = fields_of(spec["columns"], "only")
    shown = [ResultColumn(f.name, f.type, (f.name,)) for f in (*keys, *columns)]
    return StateLayout(
        tables(keys, columns),
        lambda moment: shown,
        lambda table, moment: eviction(table, spec["within"], moment),
    )


def shown_partials(keys: Sequence[pa.Field], spec: Mapping[str, Any]) -> list[ResultColumn]:
    """Partial matches as readers see them: when they began and end, and what they wait for."""
    sequence = PatternSequence.from_json(spec["pattern"])
    states = compile_pattern(sequence).states
    names = variables(sequence)
    waits = [names[s.variable] if s.variable >= 0 else None for s in states]

    def waits_for(state: Sequence[pa.Array]) -> pa.Array:
        listed = [
            list(dict.fromkeys(w for s in threads or () if (w := waits[s >> 1]) is not None))
            for threads in state[0].to_pylist()
        ]
        return pa.array(listed, _NAMES)

    def taken(state: Sequence[pa.Array]) -> pa.Array:
        return pa.array([_preferred(row, names) for row in _rows(state)], _NAMES)

    own = [
        ResultColumn("started", _TIME, (STARTED,), lambda state: state[0].view(_TIME)),
        ResultColumn("expires", _TIME, (DEADLINE,), _expires),
        ResultColumn("matched", _NAMES, (NODE_VARIABLES, NODE_PARENTS, THREAD_NODES, BEST), taken),
        ResultColumn("waits_for", _NAMES, (THREAD_STATES,), waits_for),
    ]
    taken_names = {key.name for key in keys}
    return [
        *(ResultColumn(key.name, key.type, (key.name,)) for key in keys),
        *(c for c in own if c.name not in taken_names),
    ]


def _expires(state: Sequence[pa.Array]) -> pa.Array:
    # The last microsecond is part of the time.
    return pa.array([None if us is None else us + 1 for us in state[0].to_pylist()], _TIME)


def _rows(state: Sequence[pa.Array]) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in state), strict=True))


def _preferred(row: tuple[Any, ...], names: tuple[str, ...]) -> list[str]:
    """The variables of the rows that the preferred partial match has taken, in order."""
    found, parents, threads, best = row
    node = threads[0] if threads else best
    path = []
    while node >= 0:
        path.append(names[found[node]])
        node = parents[node]
    return path[::-1]

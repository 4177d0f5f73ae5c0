"""Partial matches between epochs: from rows of state to what the matcher takes, and back.

In state, rows are known by their numbers, which are their own for ever; the matcher counts the rows
that it gets. `Taken` are the rows that partial matches hold, in order of key and number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from millrace.arrays import Int64Array, UInt64Array
from millrace.errors import MalformedError
from millrace.jit import kernel
from millrace.operators.arrays import whole_numbers
from millrace.operators.lists import list_parts, make_lists
from millrace.operators.operator import TableChange
from millrace.operators.pattern.automaton import Automaton
from millrace.operators.pattern.layout import (
    BEST,
    DEADLINE,
    NODE_PARENTS,
    NODE_ROWS,
    NODE_VARIABLES,
    START,
    STARTED,
    THREAD_NODES,
    THREAD_STATES,
)
from millrace.operators.pattern.matcher import Found, Partials, no_partials
from millrace.operators.pattern.matching import HAS_MATCHED
from millrace.operators.timed_rows import changed_rows
from millrace.state.replica import Replica

_LISTS = pa.list_(pa.int64())


@dataclass(frozen=True)
class Taken:
    """Rows by their numbers, in order of key and number: where the matcher has them."""

    bounds: Int64Array
    """Where those of each key begin."""
    number: Int64Array
    row: Int64Array


@dataclass(frozen=True)
class Loaded:
    """Partial matches of some keys, and where they are stored."""

    partials: Partials
    addresses: UInt64Array
    deadlines: Int64Array


@kernel
def _located(
    bounds: Int64Array, number: Int64Array, row: Int64Array, keys: Int64Array, wanted: Int64Array
) -> Int64Array:
    """The row with each number, of the key with each number; -1 if there is none."""
    out = np.empty(len(wanted), np.int64)
    for i in range(len(wanted)):
        low = bounds[keys[i]]
        end = bounds[keys[i] + 1]
        high = end
        while low < high:
            middle = (low + high) // 2
            if number[middle] < wanted[i]:
                low = middle + 1
            else:
                high = middle
        out[i] = row[low] if low < end and number[low] == wanted[i] else -1
    return out


def _found(taken: Taken, keys: Int64Array, wanted: Int64Array) -> Int64Array:
    rows = _located(taken.bounds, taken.number, taken.row, keys, wanted)
    if (rows < 0).any():
        raise MalformedError("a partial match in state has taken a row that is not there")
    return rows


def load(
    replica: Replica,
    addresses: UInt64Array,
    key_of: Int64Array,
    keys: int,
    taken: Taken,
    automaton: Automaton,
) -> Loaded:
    """Partial matches at some addresses. `key_of` is the number of each one's key, ascending."""
    if not len(addresses):
        return Loaded(no_partials(keys), addresses, np.empty(0, np.int64))
    start, deadline, best = (
        whole_numbers(column)[0] for column in replica.gather(addresses, [START, DEADLINE, BEST])
    )
    rows = _found(taken, key_of, start)
    order = np.lexsort((rows, key_of))
    addresses, key_of = addresses[order], key_of[order]
    names = [NODE_ROWS, NODE_VARIABLES, NODE_PARENTS, THREAD_STATES, THREAD_NODES]
    lists = [list_parts(column) for column in replica.gather(addresses, names)]
    values = [whole_numbers(column)[0] for column, _ in lists]
    node_counts, thread_counts = lists[0][1], lists[3][1]
    _check(automaton, [counts for _, counts in lists], values, best[order])
    node_keys = np.repeat(key_of, node_counts)
    nodes = np.column_stack((_found(taken, node_keys, values[0]), values[1], values[2]))
    threads = np.column_stack((values[3], values[4]))
    node_ends, thread_ends = np.cumsum(node_counts), np.cumsum(thread_counts)
    starts = np.column_stack(
        (
            rows[order],
            deadline[order],
            best[order],
            node_ends - node_counts,
            node_ends,
            thread_ends - thread_counts,
            thread_ends,
        )
    )
    bounds = np.searchsorted(key_of, np.arange(keys + 1))
    # Columns side by side are not in the order that the matcher is compiled for.
    contiguous = (np.ascontiguousarray(part) for part in (starts, nodes, threads))
    return Loaded(Partials(bounds, *contiguous), addresses, deadline[order])


def _check(
    automaton: Automaton, counts: list[Int64Array], values: list[Int64Array], best: Int64Array
) -> None:
    """Raise unless the kernel can go through partial matches: it checks nothing itself."""
    nodes, variables, parents, states, threads = values
    same = all(np.array_equal(counts[i], counts[j]) for i, j in ((0, 1), (0, 2), (3, 4)))
    if not same:
        raise MalformedError("a partial match in state has lists of different lengths")
    # Counted within its start, a node comes after the one before it.
    own = np.arange(len(nodes)) - np.repeat(np.cumsum(counts[0]) - counts[0], counts[0])
    of_threads = np.repeat(counts[0], counts[3])
    is_right = (
        ((variables >= 0) & (variables < len(automaton.variables))).all()
        and ((parents >= -1) & (parents < own)).all()
        and ((states >= 0) & (states < 2 * len(automaton.states))).all()
        and ((threads >= 0) & (threads < of_threads)).all()
        and ((best >= HAS_MATCHED) & (best < counts[0])).all()
    )
    if not is_right:
        raise MalformedError("a partial match in state is in a state that the pattern has not")


@dataclass(frozen=True)
class KeyRows:
    """The keys of a shard's epoch, in order of fingerprint, and the rows that the matcher has."""

    hi: UInt64Array
    lo: UInt64Array
    columns: Sequence[pa.Array]
    """The columns of the keys."""
    number: Int64Array
    """The numbers of the rows."""
    time: Int64Array


def store(
    replica: Replica, loaded: Loaded, found: Found, keys: KeyRows, until_us: int, evicted: int
) -> TableChange:
    """What changed of the partial matches: those that are new or different, and those settled.

    Those whose time is over go by themselves.
    """
    kept = found.kept
    is_deleted = found.gone & (loaded.deadlines > until_us)
    deleted = loaded.addresses[is_deleted]
    owner = kept[:, 0]
    number = keys.number[kept[:, 1]]
    at_keys = pa.array(owner)
    nodes, threads = found.nodes, found.threads
    node_counts, thread_counts = kept[:, 6] - kept[:, 5], kept[:, 8] - kept[:, 7]
    by_name = {
        START: pa.array(number),
        STARTED: pa.array(keys.time[kept[:, 1]]),
        DEADLINE: pa.array(kept[:, 2]),
        BEST: pa.array(kept[:, 3]),
        NODE_ROWS: _lists(keys.number[nodes[:, 0]], node_counts),
        NODE_VARIABLES: _lists(nodes[:, 1], node_counts),
        NODE_PARENTS: _lists(nodes[:, 2], node_counts),
        THREAD_STATES: _lists(threads[:, 0], thread_counts),
        THREAD_NODES: _lists(threads[:, 1], thread_counts),
    }
    columns = [*(column.take(at_keys) for column in keys.columns), *by_name.values()]
    owners = keys.hi[owner], keys.lo[owner]
    changed = changed_rows(replica, START, owners, number, columns, deleted)
    return TableChange(changed, int((kept[:, 4] < 0).sum()), len(deleted), evicted)


def _lists(values: Int64Array, lengths: Int64Array) -> pa.Array:
    return make_lists(pa.array(np.ascontiguousarray(values)), lengths, _LISTS)

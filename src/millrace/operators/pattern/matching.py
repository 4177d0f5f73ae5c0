"""The automaton over rows in order of key and time: a kernel that finds matches and keeps the rest.

Each row that can be a first row *starts* a match. A start has *threads*, its partial matches, in
order of preference: a state, and the row that was taken last, from which the others are found. A
thread that reaches the end is a match, which less preferred threads of the start can no longer
change; it is decided when no thread that is preferred to it is left. Starts are settled in their
order, because a match may say that rows in it start none.

Invariant: what a start finds depends on the rows from it on that are not after its deadline, and on
nothing else. So it makes no difference in how many steps the rows come.

Where conditions do not look at earlier rows and one match of a start is enough, two threads in the
same state have the same future: the less preferred one is dropped, so a start has no more threads
than the pattern has states.

Tables grow in `match_rows` alone, before a row is looked at, to what the row can need at most. What
it calls fills them in. One kernel that does both takes twice as long to compile.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from millrace.arrays import Float64Array
from millrace.jit import kernel, part
from millrace.operators.pattern import program as p
from millrace.operators.pattern.evaluating import (
    PARENT,
    REGISTERS,
    ROW,
    VARIABLE,
    Array,
    holds,
    take,
)

EVERY, TO_NEXT, PAST_LAST, TO_FIRST, TO_LAST = range(5)
"""Which further matches there are after a match."""

STRICT, RELAXED, ANY = range(3)
"""How a state's row follows the one before it: `next`, `followed_by`, `followed_by_any`."""

MATCHED, TIMED_OUT = range(2)
"""What is emitted."""

FINE, TOO_MANY, OVERFLOW = range(3)
"""How it ended."""

MOST_THREADS = 1 << 20
"""Partial matches of a key."""

HAS_MATCHED = -2
"""Instead of a start's best match, if all of its matches are emitted when they are found."""

_ROW, _DEADLINE, _BEST, _DONE, _CHANGED, _LOADED, _FIRST, _LAST, _TIMED = range(9)
"""Of a start: `_FIRST` and `_LAST` are where its threads are, `_TIMED` is the partial match that it
ends with."""

_STATE, _NODE, _FRESH = range(3)
"""Of a thread: `_FRESH` is 1 if no row has come since it took one."""

_TAKES, _TARGETS, _NOT_NEXT, _NEVER, _WAY = 0, 1, 3, 5, 7
"""Of a state: its variable, from where to where the three lists are, and how its row follows."""

_BEHIND_LAST = -2
"""Instead of a state's variable: it waits for any row that is not a forbidden one."""

_KEY, _WHAT, _END = range(3)
"""Of what is emitted, with the node it ends with; later with where its path begins and ends."""

(
    _NODES,
    _STARTS,
    _FRONT,
    _THREADS,
    _OF_KEY,
    _FOUND,
    _STAMP,
    _ENDED,
    _MOST_TARGETS,
    _IS_SWAPPED,
    _COUNTS,
) = range(11)
"""Counts of a key, in which starts before `_FRONT` are settled, and which key it is. Of all keys:
what was found, a number for each start of each row, how it ended, how many states can be behind a
state. And whether the threads are in the table of those behind the row."""

Table: TypeAlias = Any
"""A table of whole numbers or of doubles, which can grow."""

Automaton: TypeAlias = tuple[Array, Array, Array, Array, Array]
"""States, their targets, what must not be next, what must never come, and the first states."""

Programs: TypeAlias = tuple[Array, Array, Float64Array, Array]

Pattern: TypeAlias = tuple[Automaton, Array, Programs, Array, tuple[int, int], bool]
"""With the bit of each variable in a row's mask, the registers, where the next match may begin, and
whether threads in the same state have the same future."""

Values: TypeAlias = tuple[Array, Float64Array, Array]
Stack: TypeAlias = tuple[Array, Float64Array, Array]

Tables: TypeAlias = tuple[Array, Float64Array, Array, Array, Array, Array, Array, Array]
"""Of a key: nodes and their sums, starts, threads and those behind the row, what was found, which
states were seen, and the counts."""


@part
def _room(table: Table, needed: int) -> Table:
    """The table, or its larger copy."""
    if needed <= len(table):
        return table
    larger = np.empty((max(needed, 2 * len(table)), table.shape[1]), table.dtype)
    for i in range(table.shape[0]):
        for j in range(table.shape[1]):
            larger[i, j] = table[i, j]
    return larger


@part
def _emit(found: Array, count: Array, what: int, node: int) -> None:
    found[count[_FOUND], _KEY] = count[_OF_KEY]
    found[count[_FOUND], _WHAT] = what
    found[count[_FOUND], _END] = node
    count[_FOUND] += 1


@part
def _settle(
    starts: Array, skip: tuple[int, int], nodes: Array, found: Array, gone: Array, count: Array
) -> None:
    """Emit what the first starts have found, as far as they are done."""
    mode, variable = skip
    front = count[_FRONT]
    while front < count[_STARTS] and starts[front, _DONE]:
        best = starts[front, _BEST]
        if best >= 0:
            _emit(found, count, MATCHED, best)
            before = np.int64(-1)
            if mode == PAST_LAST:
                before = nodes[best, ROW] + 1
            elif mode != TO_NEXT:
                at = best
                while at >= 0:
                    if nodes[at, VARIABLE] == variable:
                        before = nodes[at, ROW]
                        if mode == TO_LAST:
                            break
                    at = nodes[at, PARENT]
            for s in range(front + 1, count[_STARTS]):
                if starts[s, _ROW] < before:
                    starts[s, _DONE] = 1
                    starts[s, _BEST] = -1
                    starts[s, _TIMED] = -1
                    starts[s, _LAST] = starts[s, _FIRST]
        elif starts[front, _TIMED] >= 0:
            _emit(found, count, TIMED_OUT, starts[front, _TIMED])
        if starts[front, _LOADED] >= 0:
            gone[starts[front, _LOADED]] = 1
        front += 1
    count[_FRONT] = front


@part
def _expire(
    s: int, of_state: Array, mode: int, starts: Array, threads: Array, found: Array, count: Array
) -> None:
    """A start's time is over: those that wait for nothing but that are matches."""
    for t in range(starts[s, _FIRST], starts[s, _LAST]):
        if of_state[threads[t, _STATE], _TAKES] >= 0:
            continue
        if mode != EVERY:
            starts[s, _BEST] = threads[t, _NODE]
            break
        _emit(found, count, MATCHED, threads[t, _NODE])
        starts[s, _BEST] = HAS_MATCHED
    if starts[s, _BEST] == -1 and starts[s, _FIRST] < starts[s, _LAST]:
        starts[s, _TIMED] = threads[starts[s, _FIRST], _NODE]
    starts[s, _DONE] = 1
    starts[s, _LAST] = starts[s, _FIRST]


@part
def _run_rows(
    pattern: Pattern,
    rows: tuple[Array, Array, Array, Array],
    first: int,
    end: int,
    values: Values,
    stack: Stack,
    times: tuple[int, int],
    gone: Array,
    tables: Tables,
) -> int:
    """Offer rows of a key to its starts, and each to a new one: up to where there is no room.

    Returns at which row it stopped. That may be one past the end: then time alone has passed. Calls
    are few, because to pass an array on takes longer than what most threads do.
    """
    automaton, masks, programs, registers, skip, forgets = pattern
    of_state, targets, not_next, never, initial = automaton
    bounds = programs[1]
    _, row_time, row_mask, row_due = rows
    nodes, sums, starts, threads, following, found, seen, count = tables
    within, until = times
    mode = skip[0]
    is_swapped = False
    for i in range(first, end + 1):
        # After the last row, time alone goes on.
        is_over = i == end
        if not is_over and not row_due[i]:
            continue
        most = count[_THREADS] + len(initial)
        if (
            len(nodes) < count[_NODES] + most
            or len(starts) <= count[_STARTS]
            or len(following) < most * (count[_MOST_TARGETS] + 1)
            or len(threads) < most * (count[_MOST_TARGETS] + 1)
            or len(found) < count[_FOUND] + count[_STARTS] + most * (count[_MOST_TARGETS] + 2) + 1
        ):
            count[_IS_SWAPPED] = is_swapped
            return i
        now = until + 1 if is_over else row_time[i]
        while count[_FRONT] < count[_STARTS] and starts[count[_FRONT], _DEADLINE] < now:
            if not starts[count[_FRONT], _DONE]:
                _expire(count[_FRONT], of_state, mode, starts, threads, found, count)
            _settle(starts, skip, nodes, found, gone, count)
        if is_over:
            break
        mask = row_mask[i]
        n_following = np.int64(0)
        n_starts = count[_STARTS]
        for s in range(count[_FRONT], n_starts + 1):
            is_new = s == n_starts
            if not is_new and starts[s, _DONE]:
                continue
            count[_STAMP] += 1
            stamp = count[_STAMP]
            begin = n_following
            best = -1 if is_new else starts[s, _BEST]
            is_changed = False
            first_thread = np.int64(0) if is_new else starts[s, _FIRST]
            last_thread = np.int64(len(initial)) if is_new else starts[s, _LAST]
            for t in range(first_thread, last_thread):
                if is_new:
                    state = initial[t]
                    node = -1
                    is_fresh = np.int64(0)
                    guards = of_state[state, _NEVER]
                else:
                    state = threads[t, _STATE]
                    node = threads[t, _NODE]
                    is_fresh = threads[t, _FRESH]
                    guards = of_state[state, _NEVER + 1]
                    if is_fresh:
                        guards += of_state[state, _NOT_NEXT + 1] - of_state[state, _NOT_NEXT]
                # First what no row may be behind the thread, at last what the thread waits for.
                is_taken = False
                is_ended = False
                for g in range(of_state[state, _NEVER], guards + 1):
                    is_guard = g < guards
                    if not is_guard:
                        variable = of_state[state, _TAKES]
                        if variable < 0:
                            break
                    elif g < of_state[state, _NEVER + 1]:
                        variable = never[g]
                    else:
                        variable = not_next[
                            of_state[state, _NOT_NEXT] + g - of_state[state, _NEVER + 1]
                        ]
                    bit = masks[variable]
                    if bit >= 0 and not (mask >> bit) & 1:
                        continue
                    held = 1
                    if bounds[variable] < bounds[variable + 1]:
                        held = holds(programs, values, variable, i, node, nodes, sums, stack)
                        if held < 0:
                            count[_ENDED] = OVERFLOW
                    if held != 0:
                        is_taken = not is_guard
                        is_ended = is_guard
                        break
                if is_ended:
                    is_changed = True
                    continue
                variable = of_state[state, _TAKES]
                if is_taken:
                    is_changed = True
                    taken = count[_NODES]
                    count[_NODES] = taken + 1
                    if not take(nodes, sums, taken, i, variable, node, registers, values):
                        count[_ENDED] = OVERFLOW
                    is_cut = False
                    for at in range(of_state[state, _TARGETS], of_state[state, _TARGETS + 1]):
                        target = targets[at]
                        if target < 0:
                            if mode != EVERY:
                                # Threads that are less preferred can no longer change it.
                                best = taken
                                is_cut = True
                                break
                            _emit(found, count, MATCHED, taken)
                            best = HAS_MATCHED
                            continue
                        fresh = np.int64(
                            of_state[target, _NOT_NEXT + 1] > of_state[target, _NOT_NEXT]
                        )
                        if forgets:
                            if seen[target, fresh] == stamp:
                                continue
                            seen[target, fresh] = stamp
                        following[n_following, _STATE] = target
                        following[n_following, _NODE] = taken
                        following[n_following, _FRESH] = fresh
                        n_following += 1
                    if is_cut:
                        break
                if is_new:
                    continue
                if variable == _BEHIND_LAST:
                    is_changed = True
                    if mode != EVERY:
                        best = node
                        break
                    _emit(found, count, MATCHED, node)
                    best = HAS_MATCHED
                    continue
                way = of_state[state, _WAY]
                if way == STRICT or (way == RELAXED and is_taken):
                    is_changed = True
                    continue
                if forgets:
                    if seen[state, 0] == stamp:
                        is_changed = True
                        continue
                    seen[state, 0] = stamp
                if is_fresh:
                    is_changed = True
                following[n_following, _STATE] = state
                following[n_following, _NODE] = node
                following[n_following, _FRESH] = 0
                n_following += 1
            if is_new:
                if n_following == begin and best < 0:
                    continue
                starts[s, _ROW] = i
                starts[s, _DEADLINE] = row_time[i] + within - 1
                starts[s, _LOADED] = -1
                starts[s, _TIMED] = -1
                count[_STARTS] = s + 1
            if is_new or is_changed:
                starts[s, _CHANGED] = 1
            starts[s, _BEST] = best
            starts[s, _FIRST] = begin
            starts[s, _LAST] = n_following
            starts[s, _DONE] = 1 if n_following == begin else 0
        threads, following = following, threads
        is_swapped = not is_swapped
        count[_THREADS] = n_following
        if count[_FRONT] < count[_STARTS] and starts[count[_FRONT], _DONE]:
            _settle(starts, skip, nodes, found, gone, count)
        if n_following > MOST_THREADS:
            count[_ENDED] = TOO_MANY
        if count[_ENDED] != FINE:
            break
    count[_IS_SWAPPED] = is_swapped
    return end + 1


@part
def _load(
    loaded: tuple[Array, Array, Array, Array], pattern: Pattern, values: Values, tables: Tables
) -> None:
    """The key's partial matches, as they were after the last step."""
    bounds, loaded_starts, loaded_nodes, loaded_threads = loaded
    registers = pattern[3]
    nodes, sums, starts, threads, _, _, _, count = tables
    key = count[_OF_KEY]
    for j in range(bounds[key], bounds[key + 1]):
        base = count[_NODES]
        for m in range(loaded_starts[j, 3], loaded_starts[j, 4]):
            row = loaded_nodes[m, 0]
            parent = loaded_nodes[m, 2]
            parent = base + parent if parent >= 0 else -1
            node = count[_NODES]
            if not take(nodes, sums, node, row, loaded_nodes[m, 1], parent, registers, values):
                count[_ENDED] = OVERFLOW
            count[_NODES] = node + 1
        s = count[_STARTS]
        best = loaded_starts[j, 2]
        starts[s, _ROW] = loaded_starts[j, 0]
        starts[s, _DEADLINE] = loaded_starts[j, 1]
        starts[s, _BEST] = base + best if best >= 0 else best
        starts[s, _CHANGED] = 0
        starts[s, _LOADED] = j
        starts[s, _TIMED] = -1
        starts[s, _FIRST] = count[_THREADS]
        for m in range(loaded_starts[j, 5], loaded_starts[j, 6]):
            t = count[_THREADS]
            threads[t, _STATE] = loaded_threads[m, 0] >> 1
            threads[t, _NODE] = base + loaded_threads[m, 1]
            threads[t, _FRESH] = loaded_threads[m, 0] & 1
            count[_THREADS] = t + 1
        starts[s, _LAST] = count[_THREADS]
        starts[s, _DONE] = 1 if starts[s, _FIRST] == starts[s, _LAST] else 0
        count[_STARTS] = s + 1


@part
def _measure(found: Array, first: int, nodes: Array, count: Array) -> int:
    """How many rows the key's matches have; each one's is in its last column."""
    total = 0
    for f in range(first, count[_FOUND]):
        length = 0
        at = found[f, _END]
        while at >= 0:
            length += 1
            at = nodes[at, PARENT]
        found[f, _END + 1] = length
        total += length
    return total


@part
def _write(
    found: Array, first: int, paths: Array, n_paths: int, nodes: Array, count: Array
) -> None:
    """The rows of the key's matches, the first one first."""
    for f in range(first, count[_FOUND]):
        at = found[f, _END]
        end = n_paths + found[f, _END + 1]
        for i in range(end - 1, n_paths - 1, -1):
            paths[i, 0] = nodes[at, VARIABLE]
            paths[i, 1] = nodes[at, ROW]
            at = nodes[at, PARENT]
        found[f, _END] = n_paths
        found[f, _END + 1] = end
        n_paths = end


@part
def _keep(kept: tuple[Array, Array, Array, Array], gone: Array, tables: Tables) -> None:
    """Write down the key's starts that are not settled and have changed."""
    kept_starts, kept_nodes, kept_threads, n_kept = kept
    nodes, _, starts, threads, _, _, _, count = tables
    number = np.empty(count[_NODES], np.int64)
    walked = np.empty(count[_NODES], np.int64)
    for node in range(count[_NODES]):
        number[node] = -1
    for s in range(count[_FRONT], count[_STARTS]):
        best = starts[s, _BEST]
        if starts[s, _DONE] and best < 0:
            if starts[s, _LOADED] >= 0:
                gone[starts[s, _LOADED]] = 1
            continue
        if not starts[s, _CHANGED]:
            continue
        k = n_kept[0]
        n_kept[0] = k + 1
        first_node = n_kept[1]
        first_thread = n_kept[2]
        for t in range(starts[s, _FIRST], starts[s, _LAST] + 1):
            node = best if t == starts[s, _LAST] else threads[t, _NODE]
            length = 0
            while node >= 0 and number[node] < 0:
                walked[length] = node
                length += 1
                node = nodes[node, PARENT]
            for m in range(length - 1, -1, -1):
                node = walked[m]
                parent = nodes[node, PARENT]
                at = n_kept[1]
                number[node] = at - first_node
                kept_nodes[at, 0] = nodes[node, ROW]
                kept_nodes[at, 1] = nodes[node, VARIABLE]
                kept_nodes[at, 2] = number[parent] if parent >= 0 else np.int64(-1)
                n_kept[1] = at + 1
            if t < starts[s, _LAST]:
                at = n_kept[2]
                kept_threads[at, 0] = threads[t, _STATE] << 1 | threads[t, _FRESH]
                kept_threads[at, 1] = number[threads[t, _NODE]]
                n_kept[2] = at + 1
        kept_starts[k, 0] = count[_OF_KEY]
        kept_starts[k, 1] = starts[s, _ROW]
        kept_starts[k, 2] = starts[s, _DEADLINE]
        kept_starts[k, 3] = number[best] if best >= 0 else best
        kept_starts[k, 4] = starts[s, _LOADED]
        kept_starts[k, 5] = first_node
        kept_starts[k, 6] = n_kept[1]
        kept_starts[k, 7] = first_thread
        kept_starts[k, 8] = n_kept[2]


@kernel
def match_rows(
    pattern: Pattern,
    rows: tuple[Array, Array, Array, Array],
    values: Values,
    loaded: tuple[Array, Array, Array, Array],
    times: tuple[int, int],
) -> tuple[Array, Array, Array, Array, Array, Array, int]:
    """All keys of a shard in one epoch; see `matcher` for what goes in and comes out."""
    of_state, _, _, _, initial = pattern[0]
    key_bounds = rows[0]
    loaded_bounds, loaded_starts, _, _ = loaded
    n_registers = len(pattern[3])
    stack = (
        np.empty(p.MOST_DEPTH, np.int64),
        np.empty(p.MOST_DEPTH, np.float64),
        np.empty(p.MOST_DEPTH, np.int64),
    )
    nodes = np.empty((64, REGISTERS + n_registers), np.int64)
    sums = np.empty((64, max(n_registers, 1)), np.float64)
    starts = np.empty((16, 9), np.int64)
    threads = np.empty((64, 3), np.int64)
    following = np.empty((64, 3), np.int64)
    found = np.empty((16, 4), np.int64)
    paths = np.empty((64, 2), np.int64)
    kept_starts = np.empty((16, 9), np.int64)
    kept_nodes = np.empty((64, 3), np.int64)
    kept_threads = np.empty((64, 2), np.int64)
    n_kept = np.zeros(3, np.int64)
    gone = np.zeros(len(loaded_starts), np.int64)
    seen = np.zeros((len(of_state) + 1, 2), np.int64)
    count = np.zeros(_COUNTS, np.int64)
    for state in range(len(of_state)):
        reached = of_state[state, _TARGETS + 1] - of_state[state, _TARGETS]
        count[_MOST_TARGETS] = max(count[_MOST_TARGETS], reached)
    n_paths = 0
    for key in range(len(key_bounds) - 1):
        for at in range(_OF_KEY):
            count[at] = 0
        count[_OF_KEY] = key
        n_nodes = n_threads = 0
        for j in range(loaded_bounds[key], loaded_bounds[key + 1]):
            n_nodes += loaded_starts[j, 4] - loaded_starts[j, 3]
            n_threads += loaded_starts[j, 6] - loaded_starts[j, 5]
        first_found = count[_FOUND]
        nodes = _room(nodes, n_nodes)
        sums = _room(sums, n_nodes)
        threads = _room(threads, n_threads)
        starts = _room(starts, loaded_bounds[key + 1] - loaded_bounds[key])
        tables = nodes, sums, starts, threads, following, found, seen, count
        _load(loaded, pattern, values, tables)
        i, end = key_bounds[key], key_bounds[key + 1]
        while i <= end:
            tables = nodes, sums, starts, threads, following, found, seen, count
            i = _run_rows(pattern, rows, i, end, values, stack, times, gone, tables)
            if count[_IS_SWAPPED]:
                threads, following = following, threads
            most = count[_THREADS] + len(initial)
            n_targets = count[_MOST_TARGETS]
            nodes = _room(nodes, count[_NODES] + most)
            sums = _room(sums, count[_NODES] + most)
            starts = _room(starts, count[_STARTS] + 1)
            threads = _room(threads, most * (n_targets + 1))
            following = _room(following, most * (n_targets + 1))
            found = _room(found, count[_FOUND] + count[_STARTS] + most * (n_targets + 2) + 1)
        if count[_ENDED] != FINE:
            break
        length = _measure(found, first_found, nodes, count)
        paths = _room(paths, n_paths + length)
        _write(found, first_found, paths, n_paths, nodes, count)
        n_paths += length
        kept_starts = _room(kept_starts, n_kept[0] + count[_STARTS])
        kept_nodes = _room(kept_nodes, n_kept[1] + count[_NODES])
        kept_threads = _room(kept_threads, n_kept[2] + count[_THREADS])
        tables = nodes, sums, starts, threads, following, found, seen, count
        _keep((kept_starts, kept_nodes, kept_threads, n_kept), gone, tables)
    return (
        found[: count[_FOUND]],
        paths[:n_paths],
        kept_starts[: n_kept[0]],
        kept_nodes[: n_kept[1]],
        kept_threads[: n_kept[2]],
        gone,
        count[_ENDED],
    )

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
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from millrace.arrays import Float64Array
from millrace.jit import kernel
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

_DEADLINE, _BEST, _DONE, _CHANGED, _LOADED, _FIRST, _LAST, _TIMED = range(1, 9)
"""Of a start, beside its row: `_FIRST` and `_LAST` are where its threads are, `_TIMED` is the
partial match that it ends with."""


Rows: TypeAlias = Any
"""A table of whole numbers or of doubles, which can grow."""


@kernel
def _room(array: Rows, needed: int) -> Rows:
    """The array, or its larger copy."""
    if needed <= len(array):
        return array
    larger = np.empty((max(needed, 2 * len(array)), array.shape[1]), array.dtype)
    larger[: len(array)] = array
    return larger


@kernel
def _emit(
    out: Array, paths: Array, counts: Array, nodes: Array, key: int, what: int, node: int
) -> tuple[Array, Array]:
    """Write down a match: the rows up to a node, the first one first."""
    length = 0
    at = node
    while at >= 0:
        length += 1
        at = nodes[at, PARENT]
    out = _room(out, counts[0] + 1)
    paths = _room(paths, counts[1] + length)
    first = counts[1]
    at = node
    for i in range(length - 1, -1, -1):
        paths[first + i, 0] = nodes[at, VARIABLE]
        paths[first + i, 1] = nodes[at, ROW]
        at = nodes[at, PARENT]
    out[counts[0], 0] = key
    out[counts[0], 1] = what
    out[counts[0], 2] = first
    out[counts[0], 3] = first + length
    counts[0] += 1
    counts[1] += length
    return out, paths


@kernel
def _settle(
    starts: Array,
    count: int,
    front: int,
    skip: tuple[int, int],
    nodes: Array,
    out: Array,
    paths: Array,
    counts: Array,
    key: int,
) -> tuple[int, Array, Array]:
    """Emit what the first starts have found, as far as they are done; the first that is not."""
    mode, variable = skip
    while front < count and starts[front, _DONE]:
        best = starts[front, _BEST]
        if best >= 0:
            out, paths = _emit(out, paths, counts, nodes, key, MATCHED, best)
            before = -1
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
            for s in range(front + 1, count):
                if starts[s, 0] < before:
                    starts[s, _DONE] = 1
                    starts[s, _BEST] = -1
                    starts[s, _TIMED] = -1
                    starts[s, _LAST] = starts[s, _FIRST]
        elif starts[front, _TIMED] >= 0:
            out, paths = _emit(out, paths, counts, nodes, key, TIMED_OUT, starts[front, _TIMED])
        front += 1
    return front, out, paths


@kernel
def _expire(
    starts: Array,
    s: int,
    threads: Array,
    of_state: Array,
    mode: int,
    nodes: Array,
    out: Array,
    paths: Array,
    counts: Array,
    key: int,
) -> tuple[Array, Array]:
    """A start's time is over: those that wait for nothing but that are matches."""
    for t in range(starts[s, _FIRST], starts[s, _LAST]):
        if of_state[threads[t, 0], 0] >= 0:
            continue
        if mode == EVERY:
            out, paths = _emit(out, paths, counts, nodes, key, MATCHED, threads[t, 1])
            starts[s, _BEST] = HAS_MATCHED
        else:
            starts[s, _BEST] = threads[t, 1]
            break
    if starts[s, _BEST] == -1 and starts[s, _FIRST] < starts[s, _LAST]:
        starts[s, _TIMED] = threads[starts[s, _FIRST], 1]
    starts[s, _DONE] = 1
    starts[s, _LAST] = starts[s, _FIRST]
    return out, paths


@kernel
def match_rows(
    automaton: tuple[Array, Array, Array, Array, Array],
    masks: Array,
    programs: tuple[Array, Array, Float64Array, Array],
    registers: Array,
    rows: tuple[Array, Array, Array, Array],
    values: tuple[Array, Float64Array, Array],
    loaded: tuple[Array, Array, Array, Array],
    times: tuple[int, int],
    skip: tuple[int, int],
    forgets: bool,
) -> tuple[Array, Array, Array, Array, Array, Array, Array]:
    """All keys of a shard in one epoch; see `partial` for what goes in and comes out."""
    of_state, targets, not_next, never, initial = automaton
    key_bounds, row_time, row_mask, row_due = rows
    loaded_bounds, loaded_starts, loaded_nodes, loaded_threads = loaded
    within, until = times
    mode = skip[0]
    stack = (
        np.empty(p.MOST_DEPTH, np.int64),
        np.empty(p.MOST_DEPTH, np.float64),
        np.empty(p.MOST_DEPTH, np.int64),
    )
    wide = REGISTERS + len(registers)
    nodes = np.empty((64, wide), np.int64)
    sums = np.empty((64, max(len(registers), 1)), np.float64)
    starts = np.empty((16, 9), np.int64)
    current = np.empty((64, 3), np.int64)
    following = np.empty((64, 3), np.int64)
    renumbered = np.empty((64, 1), np.int64)
    walked = np.empty((64, 1), np.int64)
    out = np.empty((16, 4), np.int64)
    paths = np.empty((64, 2), np.int64)
    counts = np.zeros(2, np.int64)
    kept = np.empty((16, 9), np.int64)
    kept_nodes = np.empty((64, 3), np.int64)
    kept_threads = np.empty((64, 2), np.int64)
    n_kept = n_kept_nodes = n_kept_threads = 0
    gone = np.zeros(len(loaded_starts), np.int64)
    seen = np.zeros((len(of_state) + 1, 2), np.int64)
    stamp = 0
    ended = np.zeros(2, np.int64)
    for key in range(len(key_bounds) - 1):
        n_nodes = n_starts = n_current = front = 0
        for j in range(loaded_bounds[key], loaded_bounds[key + 1]):
            base = n_nodes
            first = loaded_starts[j, 3]
            last = loaded_starts[j, 4]
            nodes = _room(nodes, n_nodes + last - first)
            sums = _room(sums, n_nodes + last - first)
            for m in range(first, last):
                parent = loaded_nodes[m, 2]
                parent = base + parent if parent >= 0 else -1
                row = loaded_nodes[m, 0]
                if not take(
                    nodes, sums, n_nodes, row, loaded_nodes[m, 1], parent, registers, values
                ):
                    ended[0] = OVERFLOW
                n_nodes += 1
            starts = _room(starts, n_starts + 1)
            starts[n_starts, 0] = loaded_starts[j, 0]
            starts[n_starts, _DEADLINE] = loaded_starts[j, 1]
            best = loaded_starts[j, 2]
            starts[n_starts, _BEST] = base + best if best >= 0 else best
            starts[n_starts, _CHANGED] = 0
            starts[n_starts, _LOADED] = j
            starts[n_starts, _TIMED] = -1
            starts[n_starts, _FIRST] = n_current
            for m in range(loaded_starts[j, 5], loaded_starts[j, 6]):
                current = _room(current, n_current + 1)
                current[n_current, 0] = loaded_threads[m, 0] >> 1
                current[n_current, 1] = base + loaded_threads[m, 1]
                current[n_current, 2] = loaded_threads[m, 0] & 1
                n_current += 1
            starts[n_starts, _LAST] = n_current
            starts[n_starts, _DONE] = 1 if starts[n_starts, _FIRST] == n_current else 0
            n_starts += 1
        for i in range(key_bounds[key], key_bounds[key + 1] + 1):
            # After the last row, time alone goes on.
            is_over = i == key_bounds[key + 1]
            if not is_over and not row_due[i]:
                continue
            now = until + 1 if is_over else row_time[i]
            while front < n_starts and starts[front, _DEADLINE] < now:
                if not starts[front, _DONE]:
                    out, paths = _expire(
                        starts, front, current, of_state, mode, nodes, out, paths, counts, key
                    )
                before = front
                front, out, paths = _settle(
                    starts, n_starts, front, skip, nodes, out, paths, counts, key
                )
                for s in range(before, front):
                    if starts[s, _LOADED] >= 0:
                        gone[starts[s, _LOADED]] = 1
            if is_over:
                break
            n_following = 0
            mask = row_mask[i]
            for s in range(front, n_starts + 1):
                is_new = s == n_starts
                if not is_new and starts[s, _DONE]:
                    continue
                stamp += 1
                begin = n_following
                best = -1 if is_new else starts[s, _BEST]
                is_changed = False
                first = 0 if is_new else starts[s, _FIRST]
                last = len(initial) if is_new else starts[s, _LAST]
                for t in range(first, last):
                    if is_new:
                        state = initial[t]
                        node = -1
                        is_fresh = 0
                    else:
                        state = current[t, 0]
                        node = current[t, 1]
                        is_fresh = current[t, 2]
                    is_cut = False
                    is_bad = False
                    guards = of_state[state, 6]
                    if is_new:
                        # There is no row before it that others could be behind.
                        guards = of_state[state, 5]
                    elif is_fresh:
                        guards = of_state[state, 6] + of_state[state, 4] - of_state[state, 3]
                    for g in range(of_state[state, 5], guards):
                        if g < of_state[state, 6]:
                            variable = never[g]
                        else:
                            variable = not_next[of_state[state, 3] + g - of_state[state, 6]]
                        bit = masks[variable]
                        if bit >= 0 and not (mask >> bit) & 1:
                            continue
                        held = 1
                        if programs[1][variable] < programs[1][variable + 1]:
                            held = holds(programs, values, variable, i, node, nodes, sums, stack)
                        if held < 0:
                            ended[0] = OVERFLOW
                        if held != 0:
                            is_bad = True
                            break
                    if is_bad:
                        is_changed = True
                        continue
                    variable = of_state[state, 0]
                    is_taken = False
                    if variable >= 0:
                        bit = masks[variable]
                        is_taken = bit < 0 or (mask >> bit) & 1 == 1
                        if is_taken and programs[1][variable] < programs[1][variable + 1]:
                            held = holds(programs, values, variable, i, node, nodes, sums, stack)
                            if held < 0:
                                ended[0] = OVERFLOW
                            is_taken = held == 1
                    if is_taken:
                        is_changed = True
                        nodes = _room(nodes, n_nodes + 1)
                        sums = _room(sums, n_nodes + 1)
                        if not take(nodes, sums, n_nodes, i, variable, node, registers, values):
                            ended[0] = OVERFLOW
                        taken = n_nodes
                        n_nodes += 1
                        for at in range(of_state[state, 1], of_state[state, 2]):
                            target = targets[at]
                            if target < 0:
                                if mode == EVERY:
                                    out, paths = _emit(
                                        out, paths, counts, nodes, key, MATCHED, taken
                                    )
                                    best = HAS_MATCHED
                                    continue
                                best = taken
                                is_cut = True
                                break
                            fresh = 1 if of_state[target, 4] > of_state[target, 3] else 0
                            if forgets:
                                if seen[target, fresh] == stamp:
                                    continue
                                seen[target, fresh] = stamp
                            following = _room(following, n_following + 1)
                            following[n_following, 0] = target
                            following[n_following, 1] = taken
                            following[n_following, 2] = fresh
                            n_following += 1
                    if variable == -2 and not is_new:
                        # The row behind the last one has come, and is not a forbidden one.
                        is_changed = True
                        if mode == EVERY:
                            out, paths = _emit(out, paths, counts, nodes, key, MATCHED, node)
                            best = HAS_MATCHED
                        else:
                            best = node
                            is_cut = True
                    elif not is_cut and not is_new:
                        way = of_state[state, 7]
                        if way == ANY or (way == RELAXED and not is_taken):
                            if is_fresh:
                                is_changed = True
                            if forgets:
                                if seen[state, 0] == stamp:
                                    is_changed = True
                                    continue
                                seen[state, 0] = stamp
                            following = _room(following, n_following + 1)
                            following[n_following, 0] = state
                            following[n_following, 1] = node
                            following[n_following, 2] = 0
                            n_following += 1
                        elif not is_taken:
                            is_changed = True
                    if is_cut:
                        is_changed = True
                        break
                if is_new:
                    if n_following == begin and best == -1:
                        continue
                    if n_following == begin and best == HAS_MATCHED:
                        continue
                    starts = _room(starts, n_starts + 1)
                    starts[s, 0] = i
                    starts[s, _DEADLINE] = row_time[i] + within - 1
                    starts[s, _LOADED] = -1
                    starts[s, _TIMED] = -1
                    starts[s, _CHANGED] = 1
                    n_starts += 1
                elif is_changed:
                    starts[s, _CHANGED] = 1
                starts[s, _BEST] = best
                starts[s, _FIRST] = begin
                starts[s, _LAST] = n_following
                starts[s, _DONE] = 1 if n_following == begin else 0
            current, following = following, current
            before = front
            front, out, paths = _settle(
                starts, n_starts, front, skip, nodes, out, paths, counts, key
            )
            for s in range(before, front):
                if starts[s, _LOADED] >= 0:
                    gone[starts[s, _LOADED]] = 1
            if n_following > MOST_THREADS:
                ended[0] = TOO_MANY
            if ended[0] != FINE:
                ended[1] = key
                return out[:0], paths, kept, kept_nodes, kept_threads, gone, ended
        if ended[0] != FINE:
            ended[1] = key
            return out[:0], paths, kept, kept_nodes, kept_threads, gone, ended
        renumbered = _room(renumbered, n_nodes)
        walked = _room(walked, n_nodes)
        renumbered[:n_nodes] = -1
        for s in range(front, n_starts):
            if starts[s, _DONE] and starts[s, _BEST] < 0:
                if starts[s, _LOADED] >= 0:
                    gone[starts[s, _LOADED]] = 1
                continue
            if not starts[s, _CHANGED]:
                continue
            kept = _room(kept, n_kept + 1)
            first_node = n_kept_nodes
            first_thread = n_kept_threads
            for t in range(starts[s, _FIRST], starts[s, _LAST] + 1):
                node = starts[s, _BEST] if t == starts[s, _LAST] else current[t, 1]
                length = 0
                while node >= 0 and renumbered[node, 0] < 0:
                    walked[length, 0] = node
                    length += 1
                    node = nodes[node, PARENT]
                kept_nodes = _room(kept_nodes, n_kept_nodes + length)
                for m in range(length - 1, -1, -1):
                    node = walked[m, 0]
                    parent = nodes[node, PARENT]
                    renumbered[node, 0] = n_kept_nodes - first_node
                    kept_nodes[n_kept_nodes, 0] = nodes[node, ROW]
                    kept_nodes[n_kept_nodes, 1] = nodes[node, VARIABLE]
                    kept_nodes[n_kept_nodes, 2] = renumbered[parent, 0] if parent >= 0 else -1
                    n_kept_nodes += 1
                if t < starts[s, _LAST]:
                    kept_threads = _room(kept_threads, n_kept_threads + 1)
                    kept_threads[n_kept_threads, 0] = current[t, 0] << 1 | current[t, 2]
                    kept_threads[n_kept_threads, 1] = renumbered[current[t, 1], 0]
                    n_kept_threads += 1
            best = starts[s, _BEST]
            kept[n_kept, 0] = key
            kept[n_kept, 1] = starts[s, 0]
            kept[n_kept, 2] = starts[s, _DEADLINE]
            kept[n_kept, 3] = renumbered[best, 0] if best >= 0 else best
            kept[n_kept, 4] = starts[s, _LOADED]
            kept[n_kept, 5] = first_node
            kept[n_kept, 6] = n_kept_nodes
            kept[n_kept, 7] = first_thread
            kept[n_kept, 8] = n_kept_threads
            n_kept += 1
    return (
        out[: counts[0]],
        paths[: counts[1]],
        kept[:n_kept],
        kept_nodes[:n_kept_nodes],
        kept_threads[:n_kept_threads],
        gone,
        ended,
    )

"""A compiled pattern over rows in order of key and time: what the kernel takes and gives.

This knows neither state nor streams. `OrderedRows` are those that are looked at now, and before
them the ones that partial matches have taken. `Partials` are the starts of matches that are not
settled, in order of key and row: each with the rows that its partial matches have taken, as a tree,
and with the states that they are in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.arrays import BoolArray, Float64Array, Int64Array
from millrace.errors import PatternError, PatternLimitError
from millrace.operators.arrays import float64s, int64s, validity
from millrace.operators.pattern import matching, tree
from millrace.operators.pattern.automaton import FIRST, Automaton
from millrace.operators.pattern.program import Programs, ValueKind

EVERY, TO_NEXT, PAST_LAST = "every match", "skip to next", "skip past last"
TO_FIRST, TO_LAST = "skip to first", "skip to last"

_MODES = {
    EVERY: matching.EVERY,
    TO_NEXT: matching.TO_NEXT,
    PAST_LAST: matching.PAST_LAST,
    TO_FIRST: matching.TO_FIRST,
    TO_LAST: matching.TO_LAST,
}
_WAYS = {
    FIRST: matching.STRICT,
    tree.NEXT: matching.STRICT,
    tree.FOLLOWED_BY: matching.RELAXED,
    tree.FOLLOWED_BY_ANY: matching.ANY,
}


@dataclass(frozen=True)
class After:
    """Where the next match may begin after a match."""

    mode: str
    variable: str | None = None

    def to_json(self) -> dict[str, str | None]:
        return {"mode": self.mode, "variable": self.variable}

    @staticmethod
    def from_json(data: Mapping[str, str | None]) -> After:
        return After(str(data["mode"]), data["variable"])


def parse_after(text: object, sequence: tree.Sequence) -> After:
    """`"skip past last"`, `"skip to first b"` and so on."""
    given = str(text)
    if given in (EVERY, TO_NEXT, PAST_LAST):
        return After(given)
    for mode in (TO_FIRST, TO_LAST):
        name = given.removeprefix(f"{mode} ").strip()
        if given.startswith(f"{mode} ") and name:
            known = tree.variables(sequence)
            if name not in known:
                raise PatternError(
                    f"after={text!r}: the pattern has no {name!r}. It has "
                    f"{', '.join(map(repr, known))}."
                )
            if name in tree.first_variables(sequence):
                raise PatternError(
                    f"after={text!r}: {name!r} can be the first row of a match, and the next match "
                    "would begin where this one did. Skip to a later row."
                )
            return After(mode, name)
    raise PatternError(
        f"after={text!r}: say 'skip past last', 'skip to next', 'skip to first NAME', 'skip to "
        "last NAME' or 'every match'."
    )


@dataclass(frozen=True)
class OrderedRows:
    """Rows in order of key and time."""

    bounds: Int64Array
    """Where the rows of each key begin."""
    time: Int64Array
    mask: Int64Array
    """A bit for each condition that was computed before."""
    due: BoolArray
    """Which rows are looked at now; the others were, and have been taken."""
    columns: Mapping[str, pa.Array]
    """What conditions on earlier rows compare."""


@dataclass(frozen=True)
class Partials:
    """Starts that are not settled, in order of key and row."""

    bounds: Int64Array
    """Where the starts of each key begin."""
    starts: Int64Array
    """Row, deadline, best match so far, and from where to where its nodes and threads are."""
    nodes: Int64Array
    """Rows that were taken: row, variable, and the node before it, counted within the start."""
    threads: Int64Array
    """Partial matches: twice the state, and 1 if no row has come since; and the last node."""


@dataclass(frozen=True)
class Found:
    """What came of it."""

    matches: Int64Array
    """Key, and from where to where the rows of the match are in `paths`."""
    timeouts: Int64Array
    """The same of partial matches whose time was over."""
    paths: Int64Array
    """Variable and row."""
    kept: Int64Array
    """Starts that are new or have changed: key, row, deadline, best match, which of the partials it
    was or -1, and from where to where its nodes and threads are."""
    nodes: Int64Array
    threads: Int64Array
    gone: BoolArray
    """Which of the partials are settled."""


def no_partials(keys: int) -> Partials:
    return Partials(
        np.zeros(keys + 1, np.int64),
        np.empty((0, 7), np.int64),
        np.empty((0, 3), np.int64),
        np.empty((0, 2), np.int64),
    )


class Matcher:
    """A pattern, ready to run."""

    def __init__(
        self,
        automaton: Automaton,
        programs: Programs,
        bits: Mapping[str, int],
        within_us: int,
        after: After,
    ) -> None:
        """`bits` says which bit of a row's mask belongs to a variable, if one does."""
        self.automaton = automaton
        self.programs = programs
        self._within_us = within_us
        names = automaton.variables
        self._masks = np.asarray([bits.get(name, -1) for name in names], np.int64)
        states = automaton.states
        targets, target_bounds = _flat([state.targets for state in states])
        not_next, next_bounds = _flat([state.not_next for state in states])
        never, never_bounds = _flat([state.never for state in states])
        table = np.empty((len(states), 8), np.int64)
        table[:, 0] = [state.variable for state in states]
        for at, bounds in ((1, target_bounds), (3, next_bounds), (5, never_bounds)):
            table[:, at], table[:, at + 1] = bounds[:-1], bounds[1:]
        table[:, 7] = [_WAYS[state.way] for state in states]
        initial = np.asarray(automaton.initial, np.int64)
        self._automaton = table, targets, not_next, never, initial
        variable = -1 if after.variable is None else names.index(after.variable)
        self._skip = _MODES[after.mode], variable
        self._forgets = after.mode != EVERY and not programs.has_references

    def run(self, rows: OrderedRows, partials: Partials, until_us: int) -> Found:
        """Look at the rows that are due. No other row up to `until_us` will come."""
        programs = self.programs
        ranks, values = self._values(rows)
        found = matching.match_rows(
            (
                self._automaton,
                self._masks,
                (programs.code, programs.bounds, programs.floats, ranks),
                programs.registers,
                self._skip,
                self._forgets,
            ),
            (rows.bounds, rows.time, rows.mask, rows.due.astype(np.int64)),
            values,
            (partials.bounds, partials.starts, partials.nodes, partials.threads),
            (self._within_us, until_us),
        )
        out, paths, kept, nodes, threads, gone, ended = found
        if ended == matching.TOO_MANY:
            raise PatternLimitError(
                f"a key has more than {matching.MOST_THREADS:,} partial matches at once. Shorten "
                "within(), make conditions stricter, or use followed_by() in place of "
                "followed_by_any()."
            )
        if ended == matching.OVERFLOW:
            raise PatternLimitError(
                "a condition on earlier rows computes a whole number that has over 64 bits. Cast "
                "the column to double."
            )
        matched = out[:, 1] == matching.MATCHED
        shown = out[:, [0, 2, 3]]
        return Found(
            shown[matched], shown[~matched], paths, kept, nodes, threads, gone.astype(np.bool_)
        )

    def _values(
        self, rows: OrderedRows
    ) -> tuple[Int64Array, tuple[Int64Array, Float64Array, Int64Array]]:
        """The columns that programs read, as numbers; and the constants that are texts."""
        n, programs = len(rows.time), self.programs
        wholes = np.zeros((len(programs.wholes), n), np.int64)
        doubles = np.zeros((len(programs.doubles), n), np.float64)
        valid = np.zeros((len(programs.values), n), np.int64)
        texts: list[tuple[int, pa.Array]] = []
        places = [0, 0]
        for number, (name, kind) in enumerate(programs.values):
            column = rows.columns[name]
            valid[number] = validity(column)
            is_float = kind is ValueKind.FLOAT
            place = places[is_float]
            places[is_float] += 1
            if is_float:
                doubles[place] = float64s(column)
            elif kind is ValueKind.TEXT:
                texts.append((place, column))
            else:
                wholes[place] = int64s(column)
        ranks = _ranks([column for _, column in texts], programs.texts)
        for (place, _), rank in zip(texts, ranks, strict=False):
            wholes[place] = rank
        return ranks[-1], (wholes, doubles, valid)


def _flat(lists: Sequence[Sequence[int]]) -> tuple[Int64Array, Int64Array]:
    """Lists one after the other, and where each begins."""
    values: Int64Array = np.asarray([value for each in lists for value in each], np.int64)
    return values, np.cumsum([0, *map(len, lists)], dtype=np.int64)


def _ranks(columns: Sequence[pa.Array], constants: Sequence[str]) -> list[Int64Array]:
    """Numbers in place of texts, in the same order, of columns and at last of constants."""
    pieces = [*(column.cast(pa.string()) for column in columns), pa.array(constants, pa.string())]
    encoded = pa.chunked_array(pieces).combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    # As Spark does, by their bytes.
    order = pc.sort_indices(encoded.dictionary.cast(pa.binary())).to_numpy()
    rank = np.empty(len(order) + 1, np.int64)
    rank[order] = np.arange(len(order))
    rank[-1] = -1
    numbers = rank[encoded.indices.fill_null(len(order)).to_numpy()]
    return np.split(numbers, np.cumsum([len(piece) for piece in pieces])[:-1])

"""Trails: the same whether one followed every manifest or read a full one."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.errors import CorruptManifestError
from millrace.ids import Epoch, OperatorName
from millrace.keygroups import Assignment, format_ranges
from millrace.log.manifest import Manifest, OperatorCommit
from millrace.log.segment import Section, SegmentEntry
from millrace.log.trail import OperatorLog, Trail

KEY_GROUPS = 6
OPERATOR = OperatorName("op")


def entry(epoch: int, shard: int, *sections: tuple[int, int, set[int]]) -> SegmentEntry:
    described = tuple(
        Section(Epoch(first), Epoch(last), format_ranges(sorted(covers)), 1, i, 1)
        for i, (first, last, covers) in enumerate(sections)
    )
    pages = tuple((8 * i, 8, 1) for i in range(len(described)))
    size = 8 * len(pages)
    return SegmentEntry(f"segments/op/{epoch}-{shard}", Epoch(epoch), size, 1, pages, described)


def commit(*entries: SegmentEntry, rows: int = 0) -> OperatorCommit:
    return OperatorCommit(Assignment.even(KEY_GROUPS, 2), entries, rows)


def described(log: OperatorLog) -> object:
    """Everything a replica can see of a log."""
    return (
        [piece and piece.id for piece in log.base],
        log.base_last.tolist(),
        [(piece.id, groups.tolist()) for piece, groups in log.live().after()],
        sorted(log.segments()),
        log.rows,
        log.assignment,
    )


def again(log: OperatorLog) -> OperatorLog:
    return OperatorLog.from_json(json.loads(json.dumps(log.to_json())), log.key_groups)


def live(log: OperatorLog, group: int) -> list[tuple[int, int]]:
    """The epochs of the pieces that count for a key group, in order."""
    return [
        (piece.section.first, piece.section.last)
        for piece, groups in log.live().after()
        if group in groups
    ]


def test_a_base_ends_what_came_before_it() -> None:
    log = OperatorLog(KEY_GROUPS)
    log.apply(commit(entry(1, 0, (0, 1, {0, 1}))))
    log.apply(commit(entry(2, 0, (1, 2, {0, 1}))))
    log.apply(commit(entry(3, 0, (2, 3, {0, 1}), (0, 2, {0}))))
    assert live(log, 0) == [(2, 3)]
    assert live(log, 1) == [(1, 2), (2, 3)]
    assert log.base_last.tolist() == [2, 1, 0, 0, 0, 0]
    log.apply(commit(entry(4, 0, (3, 4, {5}), (0, 3, {1}))))
    assert live(log, 0) == [(2, 3)]
    assert live(log, 1) == []
    assert "segments/op/2-0" not in log.segments()


def test_a_run_takes_over_only_what_it_covers() -> None:
    log = OperatorLog(KEY_GROUPS)
    for epoch in (2, 3, 4):
        log.apply(commit(entry(epoch, 0, (epoch - 1, epoch, {0, 3}))))
    log.apply(commit(entry(5, 0, (4, 5, {0}), (1, 4, {0}))))
    assert live(log, 0) == [(1, 4), (4, 5)]
    assert live(log, 3) == [(1, 2), (2, 3), (3, 4)]
    log.apply(commit(entry(6, 1, (5, 6, {3}), (1, 4, {3}))))
    assert live(log, 3) == [(1, 4), (5, 6)]
    assert {path.rsplit("/", 1)[1] for path in log.segments()} == {"5-0", "6-1"}
    assert described(again(log)) == described(log)


def test_pieces_apply_in_order_of_what_they_end_with() -> None:
    log = OperatorLog(KEY_GROUPS)
    log.apply(commit(entry(2, 0, (1, 2, {0})), entry(2, 1, (1, 2, {3}))))
    log.apply(commit(entry(3, 0, (2, 3, {0, 3}), (1, 2, {0, 3}))))
    assert live(log, 0) == live(log, 3) == [(1, 2), (2, 3)]
    assert len(list(log.live().after())) == 2
    assert [piece.section.last for piece, _ in log.live().after(Epoch(2))] == [2, 3]
    assert list(log.live().after(Epoch(3))) == []


@st.composite
def histories(draw: st.DrawFn) -> list[OperatorCommit]:
    """Commits as shards make them: deltas, runs that end before them, and bases."""
    history = []
    groups = st.sets(st.integers(0, KEY_GROUPS - 1), min_size=1)
    for epoch in range(1, draw(st.integers(1, 14)) + 1):
        shards = draw(st.integers(1, 3))
        owners = draw(st.lists(st.integers(0, shards - 1), min_size=6, max_size=6))
        entries = []
        for shard in range(shards):
            mine = {g for g in range(KEY_GROUPS) if owners[g] == shard}
            changed = draw(groups) & mine
            if not changed:
                continue
            sections = [(epoch - 1 if epoch > 1 else 0, epoch, changed)]
            merged = (draw(groups) & mine) - changed if draw(st.booleans()) else set()
            if merged and epoch > 1:
                sections.append((0, epoch - 1, merged))
            runs = (draw(groups) & mine) - merged if draw(st.booleans()) else set()
            if runs and epoch > 2:
                sections.append((draw(st.integers(1, epoch - 2)), epoch - 1, runs))
            entries.append(entry(epoch, shard, *sections))
        history.append(commit(*entries, rows=epoch))
    return history


@given(histories())
@settings(max_examples=200)
def test_a_snapshot_is_as_good_as_the_whole_history(history: list[OperatorCommit]) -> None:
    """At every point: stop, write a snapshot, read it, go on."""
    whole = OperatorLog(KEY_GROUPS)
    restarted = OperatorLog(KEY_GROUPS)
    for each in history:
        whole.apply(each)
        restarted = again(restarted)
        restarted.apply(each)
        assert described(restarted) == described(whole)


@given(histories())
@settings(max_examples=200)
def test_what_counts_for_a_key_group(history: list[OperatorCommit]) -> None:
    """Against the rules written out group by group: a base ends all up to it, a run ends all that
    lies within it, and the rest applies in order."""
    log = OperatorLog(KEY_GROUPS)
    for each in history:
        log.apply(each)
    for group in range(KEY_GROUPS):
        base = 0
        pieces: list[tuple[int, int]] = []
        for each in history:
            for segment in each.segments:
                for section in segment.sections:
                    if str(group) not in _members(section):
                        continue
                    if section.is_base:
                        base = section.last
                    elif section.last < segment.epoch:
                        pieces = [
                            p
                            for p in pieces
                            if not (section.first <= p[0] and p[1] <= section.last)
                        ]
                        pieces.append((section.first, section.last))
                    else:
                        pieces.append((section.first, section.last))
        assert log.base_last[group] == base
        expected = sorted((p for p in pieces if p[1] > base), key=lambda p: p[1])
        assert sorted(live(log, group)) == sorted(expected)
        lasts = [last for _, last in live(log, group)]
        assert lasts == sorted(lasts)


def _members(section: Section) -> set[str]:
    members: set[str] = set()
    for part in section.covers.split(","):
        first, _, last = part.partition("-")
        members |= {str(g) for g in range(int(first), int(last or first) + 1)}
    return members


def test_a_manifest_must_follow() -> None:
    trail = Trail(KEY_GROUPS)

    def manifest(epoch: int, parent: str) -> Manifest:
        return Manifest("q", "r", Epoch(epoch), parent, Epoch(1), 0, None, 0, KEY_GROUPS, {})

    with pytest.raises(CorruptManifestError, match="epoch 2 does not follow that of epoch 0"):
        trail.advance(manifest(2, ""), "b")
    with pytest.raises(CorruptManifestError, match="chain of manifests is broken"):
        trail.advance(manifest(1, "stranger"), "a")
    trail.advance(manifest(1, ""), "a")
    trail.advance(manifest(2, "a"), "b")
    assert (trail.epoch, trail.checksum) == (2, "b")


def test_an_operator_that_has_not_committed_is_empty() -> None:
    log = Trail(KEY_GROUPS).operator(OPERATOR)
    assert log.segments() == {}
    assert list(log.live().after()) == []
    assert np.all(log.base_last == 0)

"""Windows and panes: against what Spark's definition says, by trying."""

from __future__ import annotations

import numpy as np
import pytest

from millrace.errors import MalformedError, SchemaChangedError, WindowError
from millrace.ids import OperatorName
from millrace.operators.registry import check_change, check_spec
from millrace.operators.window.fingerprints import at_times
from millrace.operators.window.panes import Windows, tiles_of
from millrace.state.owners import ENTRY_MASK

KINDS = [Windows(10, 10), Windows(10, 10, 3), Windows(10, 2), Windows(10, 4, -1), Windows(7, 3, 2)]


def windows_of(windows: Windows, time: int) -> list[int]:
    """The ends of all windows that a time is in."""
    span = range(time - 3 * windows.size_us, time + windows.size_us + 1)
    starts = [s for s in span if (s - windows.offset_us) % windows.slide_us == 0]
    return [s + windows.size_us for s in starts if s <= time < s + windows.size_us]


@pytest.mark.parametrize("windows", KINDS, ids=str)
def test_panes_and_ends(windows: Windows) -> None:
    for time in range(-40, 40):
        ends = windows_of(windows, time)
        pane = windows.pane_of(time)
        assert pane <= time < pane + windows.pane_us
        assert windows_of(windows, pane) == ends
        assert windows.first_end(pane) == min(ends)
        assert windows.last_end(pane) == max(ends)
        for watermark in range(-30, 30, 7):
            assert (pane < windows.over_before(watermark)) == (max(ends) <= watermark)
            which, found = windows.ends(np.asarray([pane]), watermark)
            assert found.tolist() == [end for end in ends if end > watermark]
            _, found = windows.ends(np.asarray([pane]), watermark, watermark + 5)
            assert found.tolist() == [end for end in ends if watermark < end <= watermark + 5]
            assert set(which.tolist()) <= {0}
            every = range(watermark + 1, watermark + 6)
            at = [
                t
                for t in every
                if (t - windows.offset_us - windows.size_us) % windows.slide_us == 0
            ]
            assert windows.end_once(watermark, watermark + 5) == (len(at) == 1)


def test_windows_in_words() -> None:
    assert str(Windows(60_000_000, 60_000_000)) == "1 minute"
    assert str(Windows(7_200_000_000, 1_500_000, -2000)) == (
        "2 hours every 1500 milliseconds from -2 milliseconds"
    )


@pytest.mark.parametrize("given", [(0, 1), (5, 0), (5, 6), (5, 5, 5), (5, 5, -5), (10**9, 7)])
def test_windows_that_cannot_be(given: tuple[int, ...]) -> None:
    with pytest.raises(WindowError):
        Windows(*given)


def test_windows_of_several_lengths_share_panes() -> None:
    tiles = tiles_of([30, 10, 20], 10, 3)
    assert tiles == (Windows(10, 10, 3), Windows(20, 10, 3), Windows(30, 10, 3))
    assert {windows.pane_us for windows in tiles} == {10}
    assert {windows.pane_of(57) for windows in tiles} == {53}


@pytest.mark.parametrize(
    ("sizes", "slide", "message"),
    [
        ([], 10, "at least one length"),
        ([20, 10, 20], 10, "20 microseconds twice"),
        ([5, 20], 10, "slide, 10 microseconds, is longer than the window, 5"),
        ([10, 25], 10, "25 microseconds is not a multiple of the slide, 10 microseconds"),
    ],
)
def test_lengths_that_do_not_go_together(sizes: list[int], slide: int, message: str) -> None:
    with pytest.raises(WindowError, match=message):
        tiles_of(sizes, slide)


def test_lengths_shorter_than_the_longest_may_come_and_go() -> None:
    window = {"size": 40, "slide": 10, "offset": 0}
    keys = [{"name": "k", "type": "string"}]
    for lengths in ([40], [10, 40], [10, 20, 30, 40]):
        changed = spec(keys=keys, window=window, lengths=lengths)
        check_spec(changed)
        check_change(OperatorName("w"), spec(keys=keys, window=window, lengths=[20, 40]), changed)


def test_rows_of_a_key_stay_together_and_tell_their_key() -> None:
    chance = np.random.default_rng(4)
    hi, lo = chance.integers(0, 2**64, (2, 1000), np.uint64)
    times = chance.integers(-(10**15), 10**15, 1000)
    pane_hi, pane_lo = at_times(hi, lo, times)
    assert (pane_hi & ~ENTRY_MASK == hi & ~ENTRY_MASK).all()
    back_hi, back_lo = at_times(pane_hi, pane_lo, times)
    assert (back_hi == hi).all()
    assert (back_lo == lo).all()
    one = np.full(1000, hi[0]), np.full(1000, lo[0])
    prints = set(zip(*(half.tolist() for half in at_times(*one, np.arange(1000))), strict=True))
    assert len(prints) == 1000


def spec(**changed: object) -> dict[str, object]:
    window = {"size": 10, "slide": 10, "offset": 0}
    emit = {"mode": "final", "period": 0}
    base = {"kind": "window", "keys": [], "aggregates": [], "window": window, "emit": emit}
    return base | changed


def test_the_windows_of_a_location_stay() -> None:
    name = OperatorName("w")
    check_change(name, spec(), spec(emit={"mode": "update", "period": 0}))
    with pytest.raises(SchemaChangedError, match="were 10 microseconds and are now 20"):
        check_change(name, spec(), spec(window={"size": 20, "slide": 20, "offset": 0}))
    tiles = spec(lengths=[10])
    with pytest.raises(SchemaChangedError, match="were several lengths up to 10 microseconds and"):
        check_change(name, tiles, spec())
    with pytest.raises(SchemaChangedError, match="was 'window' and is now 'aggregate'"):
        check_change(name, spec(), spec(kind="aggregate"))


@pytest.mark.parametrize(
    "changed",
    [
        {"window": {"size": 10, "slide": 10}},
        {"window": {"size": 0, "slide": 10, "offset": 0}},
        {"window": {"size": 10, "slide": 11, "offset": 0}},
        {"window": {"size": 10, "slide": 10, "offset": 10}},
        {"window": {"size": 10**9, "slide": 7, "offset": 0}},
        {"window": "1 minute"},
        {"emit": {"mode": "sometimes", "period": 0}},
        {"emit": {"mode": "early", "period": 0}},
        {"emit": {"mode": "final"}},
        {"lengths": []},
        {"lengths": [20]},
        {"lengths": ["10"]},
        {"window": {"size": 20, "slide": 10, "offset": 0}, "lengths": [20, 10]},
        {"window": {"size": 20, "slide": 10, "offset": 0}, "lengths": [15, 20]},
        {"window": {"size": 20, "slide": 10, "offset": 0}, "lengths": [5, 20]},
    ],
)
def test_a_spec_that_cannot_be_is_malformed(changed: dict[str, object]) -> None:
    keys = [{"name": "k", "type": "string"}]
    check_spec(spec(keys=keys))
    with pytest.raises(MalformedError):
        check_spec(spec(keys=keys, **changed))

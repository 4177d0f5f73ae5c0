"""A location restored from a backup under open readers: the two histories are never mixed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.restoring import Backup
from tests.unit.reading.streams import Counted, as_oracle

import millrace as mr
from millrace.errors import BrokenChainError, HistoryReplacedError
from millrace.log.manifest import manifest_path
from millrace.reading.reader import Reader


class Restored:
    """Epochs 1 to 3 are common; 4 to 6 were lost, with a reader at 6, and are written again."""

    def __init__(self, folder: Path) -> None:
        self.lost = Counted(str(folder / "location"))
        self.send(self.lost, 3, value=1)
        backup = Backup(self.lost.url)
        self.send(self.lost, 3, value=1)
        self.reader = mr.open(self.lost.url)
        assert as_oracle(self.reader.to_arrow()) == self.lost.history[6]
        backup.restore()
        self.new = Counted(self.lost.url)

    def send(self, stream: Counted, epochs: int, value: int) -> None:
        for _ in range(epochs):
            stream.send([(("hall", device), value) for device in range(20)])


@pytest.fixture
def restored(tmp_path: Path) -> Restored:
    return Restored(tmp_path)


def refresh(reader: Reader) -> Any:
    return reader.refresh()


def refresh_to_the_next(reader: Reader) -> Any:
    return reader.refresh(7)


def changes_since(reader: Reader) -> Any:
    return reader.changes(4)


def changes_between(reader: Reader) -> Any:
    return reader.changes(3, 5)


def difference(reader: Reader) -> Any:
    return reader.diff(4)


@pytest.mark.parametrize("epochs", [0, 2, 3], ids=lambda n: f"{n} epochs later")
def test_a_reader_of_a_lost_epoch_says_so(restored: Restored, epochs: int) -> None:
    restored.send(restored.new, epochs, value=1000)
    with pytest.raises(HistoryReplacedError, match=r"epoch 6.*restored from a backup"):
        restored.reader.refresh()
    assert restored.reader.epoch == 6
    assert mr.open(restored.new.url).epoch == 3 + epochs


@pytest.mark.parametrize(
    "read", [refresh, refresh_to_the_next, changes_since, changes_between, difference]
)
def test_nothing_is_read_across_two_histories(
    restored: Restored, read: Callable[[Reader], Any]
) -> None:
    restored.send(restored.new, 4, value=1000)
    with pytest.raises(HistoryReplacedError, match="Open the location again; epochs 1 to 7"):
        read(restored.reader)
    # What it has read stays what it was.
    assert as_oracle(restored.reader.to_arrow()) == restored.lost.history[6]


def test_a_reader_of_a_common_epoch_goes_on(tmp_path: Path) -> None:
    stream = Counted(str(tmp_path / "location"))
    stream.send([(("hall", 1), 1)])
    reader = mr.open(stream.url)
    backup = Backup(stream.url)
    stream.send([(("hall", 1), 10)])
    backup.restore()
    again = Counted(stream.url)
    again.send([(("attic", 2), 1000)])
    assert reader.refresh() == 2
    found = {key: total for key, (_, total, _) in as_oracle(reader.to_arrow()).items()}
    assert found == {("hall", 1): 1, ("attic", 2): 1000}


def test_a_damaged_chain_is_not_taken_for_another_history(restored: Restored) -> None:
    """The reader's own epoch is there, and the next does not follow it."""
    reader = mr.open(restored.new.url)
    restored.send(restored.new, 1, value=5)
    fourth = Path(restored.new.url, manifest_path(restored.new.trail.epoch))
    stranger = fourth.read_bytes()
    fourth.unlink()
    other = Counted(restored.new.url)
    restored.send(other, 1, value=6)
    restored.send(other, 1, value=6)
    fourth.write_bytes(stranger)
    assert reader.refresh(4) == 4
    with pytest.raises(BrokenChainError, match="epoch 5 does not follow"):
        reader.refresh()

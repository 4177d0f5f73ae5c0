"""What opening a location asks of its store: each thing once, for a remote one answers slowly."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tests.unit.reading.streams import Counted, as_oracle, draw
from tests.unit.recording import RecordingStore

import millrace as mr
from millrace.errors import MissingEpochError, UnknownEpochError
from millrace.ids import Epoch
from millrace.log.manifest import manifest_path
from millrace.log.retention import collect
from millrace.reading import reader as reader_module

EPOCHS = 5


@pytest.fixture
def stream(tmp_path: Path) -> Counted:
    made = Counted(str(tmp_path / "location"))
    rng = random.Random(7)
    for _ in range(EPOCHS):
        made.send(draw(rng, 20))
    return made


@pytest.fixture
def store(stream: Counted, monkeypatch: pytest.MonkeyPatch) -> RecordingStore:
    made = RecordingStore(stream.journal.store)
    monkeypatch.setattr(reader_module, "open_store", lambda url: made)
    return made


def manifests(*epochs: int) -> list[tuple[str, str]]:
    return [("read", manifest_path(Epoch(epoch))) for epoch in epochs]


IDENTITY = ("read", "millrace.json")
LAST = ("size", manifest_path(Epoch(EPOCHS)))
NEXT = ("size", manifest_path(Epoch(EPOCHS + 1)))


def test_the_newest_epoch(stream: Counted, store: RecordingStore) -> None:
    reader = mr.open(stream.url)
    *looked, (verb, lease), last = store.asked
    assert looked == [
        IDENTITY,
        ("list", "spark/commits"),
        ("list", "manifests"),
        NEXT,
        # The last says which was the last full one, and the others lead from there to it.
        *manifests(EPOCHS, 1, 2, 3, 4),
    ]
    assert (verb, lease.split("/")[0]) == ("create", "leases")
    assert last == LAST
    assert as_oracle(reader.to_arrow()) == stream.history[EPOCHS]
    reader.close()


def test_an_epoch_by_number(stream: Counted, store: RecordingStore) -> None:
    mr.open(stream.url, epoch=3).close()
    assert store.asked[:4] == [IDENTITY, *manifests(3, 1, 2)]
    assert [verb for verb, _ in store.asked[4:]] == ["create", "size", "delete"]


def test_refreshing_where_there_is_nothing_new(stream: Counted, store: RecordingStore) -> None:
    with mr.open(stream.url) as reader:
        store.asked.clear()
        reader.refresh()
        # The epochs right after the reader's may have been collected: only a list tells. And the
        # reader's own may be another one by now.
        listed = [*manifests(EPOCHS + 1), ("list", "manifests"), NEXT]
        assert store.asked == [*listed, LAST, *manifests(EPOCHS)]


def test_what_is_newest_is_looked_up_again_if_it_is_collected_meanwhile(
    stream: Counted, store: RecordingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = reader_module.acquire
    overtaken = []

    def late(store: Any, epoch: Epoch) -> Any:
        if not overtaken:
            overtaken.append(epoch)
            for _ in range(40):
                stream.send([(("hall", 1), 1)])
            collect(stream.journal, 1)
        return real(store, epoch)

    monkeypatch.setattr(reader_module, "acquire", late)
    with mr.open(stream.url) as reader:
        assert overtaken == [EPOCHS]
        assert reader.epoch == EPOCHS + 40
        assert as_oracle(reader.to_arrow()) == stream.history[EPOCHS + 40]
    assert stream.journal.store.list("leases") == []


def test_a_location_without_the_manifest_of_a_committed_batch(tmp_path: Path) -> None:
    stream = Counted(str(tmp_path / "location"))
    stream.journal.store.put("spark/commits/0", b"v1\n{}")
    with pytest.raises(MissingEpochError, match=r"committed batch 0 .* epoch 0, is of batch None"):
        mr.open(stream.url)
    stream.send([(("hall", 1), 1)])
    assert mr.open(stream.url).epoch == 1
    stream.journal.store.put("spark/commits/1", b"v1\n{}")
    for lease in (True, False):
        with pytest.raises(MissingEpochError, match=r"committed batch 1 .* epoch 1, is of batch 0"):
            mr.open(stream.url, lease=lease)
    with pytest.raises(UnknownEpochError, match="epochs 1 to 1 are retained"):
        mr.open(stream.url, epoch=2)
    assert mr.open(stream.url, epoch=1).epoch == 1

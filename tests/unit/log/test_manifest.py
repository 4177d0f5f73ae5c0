"""Manifests: sealed JSON. No damaged byte is ever taken for content."""

from __future__ import annotations

import pytest

from millrace.errors import CorruptManifestError, NewerFormatError
from millrace.ids import Epoch, OperatorName
from millrace.keygroups import Assignment
from millrace.log import manifest as manifests
from millrace.log.manifest import Manifest, OperatorCommit
from millrace.log.segment import Section, SegmentEntry

ENTRY = SegmentEntry(
    path="segments/op/000000000012-0000-a.arrow",
    epoch=Epoch(12),
    bytes=4096,
    frame_hash=2**64 - 1,
    pages=((136, 512, 2**63 + 7), (648, 8, 0)),
    sections=(
        Section(Epoch(11), Epoch(12), "0-3", 10, 0, 1),
        Section(Epoch(0), Epoch(11), "2", 4, 1, 1),
    ),
)

FIGURES = {
    "seconds": 0.25,
    "inputRows": {"totals": 9},
    "lateRows": {"totals": 2},
    "evictedRows": {"totals": 4},
}


def manifest(full: bool) -> Manifest:
    operator = OperatorName("totals")
    return Manifest(
        query="q" * 32,
        run="r" * 32,
        epoch=Epoch(12),
        parent="ab" * 32,
        last_full=Epoch(12 if full else 3),
        batch_id=11,
        watermark_ms=None,
        time_ms=1_700_000_000_000,
        key_groups=4,
        operators={operator: OperatorCommit(Assignment.even(4, 2), (ENTRY,), 77)},
        specs={operator: {"kind": "aggregate", "name": "Zähler"}} if full else None,
        snapshot={operator: {"segments": [], "rows": 77}} if full else None,
        figures=None if full else FIGURES,
        unmet_parallelism={} if full else {operator: 3},
        offsets='v1\n{}\n{"in":{"0":7}}' if full else None,
    )


@pytest.mark.parametrize("full", [True, False])
def test_round_trip(full: bool) -> None:
    original = manifest(full)
    data, checksum = manifests.encode(original)
    again, read_checksum = manifests.decode(data, "here")
    assert again == original
    assert again.snapshot == original.snapshot
    assert again.is_full == full
    assert read_checksum == checksum
    assert manifests.encode(again) == (data, checksum)


@pytest.mark.parametrize("full", [True, False])
def test_every_flipped_byte_is_noticed(full: bool) -> None:
    data, _ = manifests.encode(manifest(full))
    for at in range(len(data)):
        for mask in (1, 2, 4, 8, 16, 32, 64, 128, 255):
            damaged = bytearray(data)
            damaged[at] ^= mask
            with pytest.raises(CorruptManifestError, match=r"here is damaged.*Restore"):
                manifests.decode(bytes(damaged), "here")


def test_every_truncation_and_every_addition_is_noticed() -> None:
    data, _ = manifests.encode(manifest(True))
    for length in range(len(data)):
        with pytest.raises(CorruptManifestError):
            manifests.decode(data[:length], "here")
    for more in (b"\0", b"\n", data):
        with pytest.raises(CorruptManifestError):
            manifests.decode(data + more, "here")


def test_a_newer_format_is_refused() -> None:
    data, _ = manifests.seal({"format": 99, "something": "new"})
    with pytest.raises(NewerFormatError, match=r"here has format 99.*Upgrade Millrace"):
        manifests.decode(data, "here")


@pytest.mark.parametrize(
    ("path", "epoch"),
    [
        ("manifests/000000000012.json", 12),
        ("manifests/1234567890123.json", 1234567890123),
        ("manifests/000000000012.json.0af3.tmp", None),
        ("manifests/000000000012", None),
        ("manifests/x.json", None),
        ("manifests/.json", None),
    ],
)
def test_only_manifests_are_taken_for_manifests(path: str, epoch: int | None) -> None:
    assert manifests.epoch_of_path(path) == epoch


def test_paths_sort_like_epochs() -> None:
    paths = [manifests.manifest_path(Epoch(e)) for e in (1, 9, 10, 999, 10**9)]
    assert paths == sorted(paths)
    assert [manifests.epoch_of_path(p) for p in paths] == [1, 9, 10, 999, 10**9]

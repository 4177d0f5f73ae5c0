"""Names that come from a location or from a user stay within the location."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.unit.driving import Location, fingerprint

from millrace.errors import CorruptManifestError, UnknownRequestError
from millrace.ids import Epoch
from millrace.log import manifest as manifests
from millrace.log.segment import SegmentEntry
from millrace.reconfigure.requests import Requests

OUTSIDE = [
    "/etc/passwd",
    "../secret",
    "segments/../../secret",
    "segments/op/../../../secret",
    "segments/op/./x",
    "segments//x",
    "segments/op",
    "manifests/op/x",
    "segments/op/x\0y",
    "",
]


@pytest.mark.parametrize("path", OUTSIDE)
def test_a_manifest_that_names_a_file_elsewhere_is_refused(tmp_path: Path, path: str) -> None:
    """Sealed as it should be: whoever can write to a location can also compute a checksum."""
    location = Location(str(tmp_path / "location"), pa.schema([("n", pa.int64())]), 4)
    location.step({fingerprint(1): (1,)})
    where = tmp_path / "location" / manifests.manifest_path(Epoch(1))
    body, _ = manifests.unseal(where.read_bytes(), "")
    body["snapshot"]["table"]["segments"][0]["path"] = path
    body["operators"]["table"]["segments"][0]["path"] = path
    where.write_bytes(manifests.seal(body)[0])
    with pytest.raises(CorruptManifestError, match="not below 'segments'"):
        location.journal.trail(Epoch(1))


def test_tables_of_an_operator_are_folders_of_their_own() -> None:
    data = {"epoch": 1, "bytes": 0, "hash": 0, "pages": [], "sections": []}
    for path in ("segments/op/x.arrow", "segments/op/timers.event/x.arrow", "segments/op/größe/x"):
        assert SegmentEntry.from_json({"path": path, **data}).path == path


def test_an_id_of_a_request_is_not_a_path(tmp_path: Path) -> None:
    location = Location(str(tmp_path / "location"), pa.schema([("n", pa.int64())]), 4)
    secret = tmp_path / "secret.json"
    secret.write_bytes(manifests.seal({"format": 1, "kind": "x", "created": 0, "details": {}})[0])
    requests = Requests(location.store)
    for id_ in ("../../secret", str(tmp_path / "secret"), "", ".", ".."):
        with pytest.raises(UnknownRequestError):
            requests.read(id_)
        assert requests.answered(id_) is None

"""The commands that talk to a query through its location, while no query runs on it."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from tests.unit.driving import Location, fingerprint
from tests.waiting import DEADLINE

from millrace.cli.command import main
from millrace.keygroups import Assignment
from millrace.reconfigure.requests import Answer, Requests


@pytest.fixture
def location(tmp_path: Path) -> Location:
    made = Location(str(tmp_path / "location"), pa.schema([("n", pa.int64())]), key_groups=16)
    spread = Assignment.even(16, 2).placed(("executor-0", "executor-1"))
    made.step({fingerprint(i): (i,) for i in range(40)}, spread)
    return made


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments], catch_exceptions=False)


COMMANDS = [
    ("rescale", "LOCATION", "--parallelism", "2"),
    ("move", "LOCATION", "0-3", "executor-1"),
    ("drain", "LOCATION", "executor-1"),
    ("assignment", "LOCATION"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: c[0])
@pytest.mark.parametrize("exists", [True, False])
def test_what_is_not_a_location(command: tuple[str, ...], exists: bool, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    if exists:
        folder.mkdir()
        (folder / "notes.txt").write_text("mine")
    result = run(*(str(folder) if a == "LOCATION" else a for a in command))
    assert result.exit_code == 1
    assert "is not a Millrace location" in result.output
    assert folder.exists() == exists
    if exists:
        assert [p.name for p in folder.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("parallelism", ["0", "-1", "17"])
def test_a_parallelism_that_cannot_be(location: Location, parallelism: str) -> None:
    result = run("rescale", location.store.url, "--parallelism", parallelism)
    assert result.exit_code == 1
    assert f"parallelism={parallelism}" in result.output
    assert "between 1 and the number of key groups, 16" in result.output
    assert location.store.list("requests") == []


def test_an_unknown_strategy(location: Location) -> None:
    result = run("rescale", location.store.url, "--parallelism", "2", "--strategy", "teleport")
    assert result.exit_code == 2
    assert "'teleport' is not one of" in result.output
    assert location.store.list("requests") == []


@pytest.mark.parametrize(
    "command",
    [("rescale", "--parallelism", "2"), ("move", "0-3", "executor-1"), ("assignment",)],
    ids=lambda c: c[0],
)
def test_an_unknown_operator(location: Location, command: tuple[str, ...]) -> None:
    name, *options = command
    result = run(name, location.store.url, *options, "--operator", "nobody")
    assert result.exit_code == 1
    assert "there is no operator 'nobody'. The query has table." in result.output
    assert location.store.list("requests") == []


@pytest.mark.parametrize("groups", ["", "x", "3-", "5-3", "1,,2", "a-b"])
def test_key_groups_that_are_none(location: Location, groups: str) -> None:
    result = run("move", location.store.url, groups, "executor-1", "--timeout", "0")
    assert result.exit_code == 1
    assert "names no key groups; write 0-15,40" in result.output
    assert location.store.list("requests") == []


def test_key_groups_beyond_the_last(location: Location) -> None:
    result = run("move", location.store.url, "3,15-16", "executor-1", "--timeout", "0")
    assert result.exit_code == 1
    assert "key groups have the numbers 0 to 15" in result.output
    assert location.store.list("requests") == []


@pytest.mark.parametrize("command", COMMANDS[:3], ids=lambda c: c[0])
def test_a_stopped_query_leaves_the_request_withdrawn(
    location: Location, command: tuple[str, ...]
) -> None:
    arguments = [location.store.url if a == "LOCATION" else a for a in command]
    result = run(*arguments, "--timeout", "0.05")
    assert result.exit_code == 1
    assert "within 0.05 seconds, so it was withdrawn" in " ".join(result.output.split())
    requests = Requests(location.store)
    assert requests.pending() == []
    assert len(location.store.list("requests")) == 2


def test_a_driver_that_takes_what_is_being_withdrawn_is_reported(
    location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Requests.answer

    def late(self: Requests, id_: str, answer: Answer) -> bool:
        self.take(self.read(id_), "driver")
        return real(self, id_, answer)

    monkeypatch.setattr(Requests, "answer", late)
    result = run("rescale", location.store.url, "--parallelism", "3", "--timeout", "0.05")
    assert result.exit_code == 1
    assert "took the request just as it was withdrawn" in " ".join(result.output.split())


def test_a_request_can_be_left_for_the_next_start(location: Location) -> None:
    url = location.store.url
    result = run("rescale", url, "--parallelism", "3", "--timeout", "0.05", "--queue")
    assert result.exit_code == 0
    (request,) = Requests(location.store).pending()
    assert request.id in result.output
    assert request.kind == "rescale"
    assert request.details == {"parallelism": 3, "strategy": "live"}


def answering(location: Location, answer: Answer) -> threading.Thread:
    """A driver that takes the first request it sees, and answers it."""
    requests = Requests(location.store)
    stop = threading.Event()

    def serve() -> None:
        while not stop.wait(0.01):
            for request in requests.pending():
                requests.take(request, "run")
                requests.answer(request.id, answer)
                return

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread


REPORT = {
    "shards": {"table": [2, 4]},
    "key_groups": 8,
    "bytes": 2_500_000,
    "seconds": 1.25,
    "epochs": 3,
}


def test_what_was_done_is_reported(location: Location) -> None:
    driver = answering(location, Answer("done", "", REPORT))
    result = run("rescale", location.store.url, "--parallelism", "4")
    driver.join(DEADLINE)
    assert result.exit_code == 0
    assert "rescale: done, table 2 -> 4; 8 key groups and 2.5 MB moved in 1.2 s" in result.output


def test_what_was_refused_is_reported(location: Location) -> None:
    driver = answering(location, Answer("refused", "there is no executor 'executor-9'."))
    result = run("drain", location.store.url, "executor-9")
    driver.join(DEADLINE)
    assert result.exit_code == 1
    assert "drain: refused, there is no executor 'executor-9'." in result.output


def test_answers_as_json(location: Location) -> None:
    driver = answering(location, Answer("superseded", "by request 3"))
    result = CliRunner().invoke(
        main, ["rescale", location.store.url, "--parallelism", "4", "--json"]
    )
    driver.join(DEADLINE)
    assert result.exit_code == 1
    body = json.loads(result.stdout)
    assert (body["state"], body["reason"]) == ("superseded", "by request 3")
    assert body["report"] == {}
    assert Requests(location.store).answered(body["request"]) is not None


def test_the_assignment_as_a_table(location: Location) -> None:
    Requests(location.store).submit("rescale", parallelism=4, strategy="live")
    result = run("assignment", location.store.url)
    assert result.exit_code == 0
    text = result.output
    assert "table, epoch 1" in text
    for part in ("executor-0", "0-7", "executor-1", "8-15"):
        assert part in text
    assert "pending: rescale parallelism=4, strategy=live" in " ".join(text.split())


def test_the_assignment_as_json(location: Location) -> None:
    request = Requests(location.store).submit("drain", executor="executor-1")
    result = run("assignment", location.store.url, "--json", "--operator", "table")
    assert result.exit_code == 0
    assert json.loads(result.output) == {
        "epoch": 1,
        "operators": {
            "table": {
                "shards": 2,
                "groups": ["0-7", "8-15"],
                "executors": ["executor-0", "executor-1"],
            }
        },
        "pending": [request.id],
    }


def test_a_damaged_request_is_an_error_without_a_traceback(location: Location) -> None:
    location.store.put("requests/0000000000001-abc.json", b"{}\nnonsense\n")
    result = run("assignment", location.store.url)
    assert result.exit_code == 1
    assert "0000000000001-abc.json is damaged" in "".join(result.output.split("\n"))
    assert "Traceback" not in result.output


def test_shards_that_may_run_anywhere(location: Location) -> None:
    location.step({fingerprint(1): (5,)}, Assignment.even(16, 1))
    assert "anywhere" in run("assignment", location.store.url).output

"""A mirror that is killed between any two steps shows one epoch, and continues from it."""

from __future__ import annotations

import random
import signal
import threading
from pathlib import Path

import pytest
from tests import processes
from tests.stress import few
from tests.unit.mirrors.places import Place, PostgresPlace, RedisPlace, RocksDbPlace
from tests.unit.mirrors.test_mirror import assert_shows
from tests.unit.reading.streams import Counted, draw
from tests.waiting import until

import millrace as mr
from millrace import hooks
from millrace.errors import MirrorUnreachableError
from millrace_lab.faults import crashes

POINTS = (hooks.BEFORE_STEP, hooks.STAGED_STEP, hooks.AFTER_STEP)
CASES = [(kind, point) for kind in ("rocksdb", "redis", "postgres") for point in POINTS]
KEPT = [("rocksdb", hooks.STAGED_STEP)]


@pytest.mark.parametrize(("kind", "point"), few(CASES, *KEPT))
def test_killed_at_every_point(
    kind: str, point: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    counted = Counted(str(tmp_path / "location"))
    rng, shown = random.Random(point), 0
    place = place_of(kind, tmp_path, request)
    # First while all rows are copied, then while changes are applied, and of several epochs.
    for epochs in (1, 1, 3):
        for _ in range(epochs):
            counted.send(draw(rng, 40))
        head = counted.journal.head()
        killed = mirror_once(counted, place, tmp_path, crash=f"{point}@{head}")
        assert killed == -signal.SIGKILL
        expected = head if point == hooks.AFTER_STEP else shown
        assert place.epoch() == expected
        if expected:
            assert_shows(place, counted, expected)
        assert mirror_once(counted, place, tmp_path) == 0
        assert_shows(place, counted, head)
        shown = head
    assert leftovers(place) == 0


def mirror_once(counted: Counted, place: Place, folder: Path, crash: str | None = None) -> int:
    """Run the command in a process of its own; its exit code."""
    environment = {} if crash is None else crashes.environment(crash)
    log = folder / "mirror.log"
    arguments = ["mirror", counted.url, place.url, "--once"]
    return processes.start("millrace.cli", *arguments, log=log, **environment).wait()


def place_of(kind: str, folder: Path, request: pytest.FixtureRequest) -> Place:
    if kind == "redis":
        return RedisPlace(request.getfixturevalue("redis_server"))
    if kind == "postgres":
        return PostgresPlace(request.getfixturevalue("database"))
    return RocksDbPlace(folder)


def leftovers(place: Place) -> int:
    """How many copies a killed process has left behind."""
    if isinstance(place, RedisPlace):
        return len(place.client.keys()) - 2
    if isinstance(place, RocksDbPlace):
        from rocksdict import Rdict

        return len(Rdict.list_cf(str(place.path))) - 2
    return 0


@pytest.mark.stress
@pytest.mark.parametrize("kind", ["redis", "postgres"])
def test_a_server_that_goes_away_for_a_while(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    from urllib.parse import urlsplit, urlunsplit

    from millrace_lab.servers.proxy import Proxy

    counted = Counted(str(tmp_path / "location"))
    rng = random.Random(7)
    counted.send(draw(rng, 40))
    place = place_of(kind, tmp_path, request)
    parts, proxy = urlsplit(place.url), Proxy()
    user = parts.netloc.rpartition("@")[0]
    through = urlunsplit(parts._replace(netloc=f"{user}@127.0.0.1:{proxy.port}"))
    unused = ("127.0.0.1", 1)
    proxy.target = unused
    with mr.mirror(counted.url, through) as mirror:
        with pytest.raises(MirrorUnreachableError, match="does not answer"):
            mirror.catch_up()
        stop = threading.Event()
        thread = threading.Thread(target=lambda: mirror.follow(poll_seconds=0.01, stop=stop))
        thread.start()
        until(lambda: mirror.problem is not None, "the outage noticed")
        proxy.target = ("127.0.0.1", int(str(parts.port)))
        until(lambda: mirror.applied and mirror.applied.epoch == 1, "the first epoch mirrored")
        # The next answer is lost on its way, whatever was asked.
        proxy.lose_answers(1)
        counted.send(draw(rng, 40))
        until(lambda: place.epoch() == 2 and mirror.problem is None, "the second epoch mirrored")
        stop.set()
        thread.join()
    assert_shows(place, counted, 2)

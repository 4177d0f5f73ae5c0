"""The page over HTTP: what it serves, to whom, and what it refuses."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from tests.conftest import ROOT
from tests.unit.ui.histories import Past, eventful
from tests.waiting import DEADLINE, until

from millrace.errors import NotALocationError, PageError, TokenRequiredError
from millrace.ui import open_page
from millrace.ui.app import FILES, make_app
from millrace.ui.history import History, Point
from millrace.ui.metrics import METRICS
from millrace.ui.metrics_page import markdown
from millrace.ui.watch import QueryStatus, SourceLag, Watch


@pytest.fixture
def watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watch:
    made = Watch(eventful(tmp_path / "location", monkeypatch).url)
    made.refresh()
    return made


class Client:
    """Asks an application, without a server in between."""

    def __init__(self, app: Starlette, host: str) -> None:
        self._app = app
        self._url = f"http://{host}"

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, base_url=self._url) as http:
                return await http.request(method, path, **options)

        return asyncio.run(ask())

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)


def client(watch: Watch, token: str | None = None, host: str = "127.0.0.1") -> Client:
    return Client(make_app(watch, token), host)


def test_the_files_need_nothing_from_elsewhere(watch: Watch) -> None:
    for path in FILES:
        answer = client(watch).get(path)
        assert answer.status_code == 200
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        outside = answer.text.replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in outside
        assert "https:" not in outside


def test_the_snapshot_and_its_errors(watch: Watch) -> None:
    body = client(watch).get("/api/snapshot", params={"after": 10}).json()
    assert [row[0] for row in body["points"]] == [11, 12]
    for odd in ("x", "", "²", "٣", "-1", "1.0", "9" * 19, "9" * 5000, "鍵"):
        assert client(watch).get("/api/snapshot", params={"after": odd}).status_code == 400
    assert client(watch).get("/api/snapshot?after=%FF&%FE=%FF").status_code == 400


@pytest.mark.parametrize("path", ["/", "/api/snapshot", "/metrics"])
def test_it_only_reads(watch: Watch, path: str) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert client(watch).request(method, path).status_code == 405


def test_a_name_that_is_not_this_machines_is_refused(watch: Watch) -> None:
    for path in ("/", "/api/snapshot", "/metrics"):
        for host in ("localhost", "127.0.0.1:8080", "[::1]:8080"):
            assert client(watch, host=host).get(path).status_code == 200
        assert client(watch, host="rebound.example.com").get(path).status_code == 403


def test_data_needs_the_token_if_there_is_one(watch: Watch) -> None:
    guarded = client(watch, "sesame", "stream.example.com")
    assert guarded.get("/").status_code == 200
    for path in ("/api/snapshot", "/metrics"):
        assert guarded.get(path).status_code == 401
        for wrong in ("Bearer sesam", "Bearer", "Basic sesame", "sesame", "Bearer s\xe9same"):
            headers = {"Authorization": wrong.encode("latin-1")}
            assert guarded.get(path, headers=headers).status_code == 401
        assert guarded.get(path, headers={"Authorization": "Bearer sesame"}).status_code == 200
        odd = {"Authorization": "Bearer 鍵".encode()}
        assert guarded.get(path, headers=odd).status_code == 401
        assert client(watch, "鍵").get(path, headers=odd).status_code == 200


def test_metrics(watch: Watch) -> None:
    answer = client(watch).get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = answer.text.splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert float(values["millrace_epoch"]) == 12
    assert float(values["millrace_last_commit_timestamp_seconds"]) == 1_700_000_012
    assert float(values['millrace_key_groups{executor="executor-0",operator="table"}']) == 8
    assert float(values['millrace_requests{kind="rescale",state="done"}']) == 2
    assert float(values['millrace_move_seconds_count{kind="rescale"}']) == 2
    assert float(values['millrace_move_seconds_bucket{kind="rescale",le="1.0"}']) == 0
    assert float(values['millrace_move_seconds_bucket{kind="rescale",le="2.0"}']) == 2
    assert float(values['millrace_move_seconds_sum{kind="rescale"}']) == 3
    assert float(values["millrace_executors_lost_total"]) == 1
    assert float(values["millrace_up"]) == 0
    told = {line.split()[2]: line.split()[3] for line in lines if line.startswith("# TYPE")}
    assert told
    assert told == {name: METRICS[name].kind for name in METRICS if name in told}


def test_histograms_of_epochs() -> None:
    history = History()
    for epoch, (time_ms, took_ms, rows) in enumerate(
        [(1000, 100.0, 5), (3000, 1500.0, 5), (3500, 10.0, 0), (9000, 4000.0, 5)], 1
    ):
        point = Point(epoch, time_ms, took_ms, rows, 0, 0, 0, 0, None, 1, 1)
        history._count(point)
    assert dict(history.took.cumulated())[2.0] == 2
    assert history.took.total == pytest.approx(5.6)
    # From the begin of the one before: 900 to 3000, and 1500 to 9000.
    assert history.latency.total == pytest.approx(2.1 + 7.5)
    assert dict(history.latency.cumulated()) == {
        **dict.fromkeys((0.05, 0.1, 0.2, 0.5, 1.0, 2.0), 0),
        5.0: 1,
        **dict.fromkeys((10.0, 30.0, 60.0, 300.0, float("inf")), 2),
    }


def test_lag_is_a_metric_of_each_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Behind:
        def status(self) -> QueryStatus:
            kafka = SourceLag("KafkaV2[Subscribe[in]]", 12, 3.5)
            unknown = SourceLag("KafkaV2[Subscribe[old]]", 7, None)
            return QueryStatus("running", sources=(kafka, unknown, SourceLag("rate", None, None)))

    watch = Watch(eventful(tmp_path / "location", monkeypatch).url, Behind())
    watch.refresh()
    lines = client(watch).get("/metrics").text.splitlines()
    assert [line for line in lines if line.startswith("millrace_source")] == [
        'millrace_source_rows_behind{source="KafkaV2[Subscribe[in]]"} 12.0',
        'millrace_source_rows_behind{source="KafkaV2[Subscribe[old]]"} 7.0',
        'millrace_source_seconds_behind{source="KafkaV2[Subscribe[in]]"} 3.5',
    ]
    shown = client(watch).get("/api/snapshot").json()["sources"]
    assert shown[0] == {
        "source": "KafkaV2[Subscribe[in]]",
        "rows_behind": 12,
        "seconds_behind": 3.5,
    }
    assert [(s["rows_behind"], s["seconds_behind"]) for s in shown[1:]] == [(7, None), (None, None)]


def test_the_time_of_each_operator_is_a_metric(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    past = Past(tmp_path / "location", monkeypatch)
    past.epochs(1)
    watch = Watch(past.url)

    def told() -> dict[str, float]:
        watch.refresh()
        names = r"(millrace_(?:operator_watermark|late|evicted)_.*) (.*)"
        lines = client(watch).get("/metrics").text.splitlines()
        found = [re.fullmatch(names, line) for line in lines]
        return {line[1]: float(line[2]) for line in found if line}

    # No watermark where there is no event time.
    assert told() == {
        'millrace_late_rows_total{operator="table"}': 0,
        'millrace_evicted_rows_total{operator="table"}': 0,
    }
    past.epochs_in_time(2, late=3, evicted=50)
    watermark = (past.now_ms - 60_000) / 1000
    assert told() == {
        'millrace_operator_watermark_timestamp_seconds{operator="table"}': watermark,
        'millrace_late_rows_total{operator="table"}': 6,
        'millrace_evicted_rows_total{operator="table"}': 100,
    }


def test_the_documentation_of_metrics_is_made_from_the_code() -> None:
    assert (ROOT / "docs" / "metrics.md").read_text() == markdown()


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    dashboard = json.loads((ROOT / "deploy" / "grafana" / "millrace.json").read_text())
    asked = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"millrace_[a-z_]+", target["expr"])
    }
    suffixes = ("", "_bucket", "_sum", "_count")
    known = {name + suffix for name in METRICS for suffix in suffixes}
    assert asked <= known
    assert len(asked) >= 10
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)


def test_serving_and_closing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    past = eventful(tmp_path / "location", monkeypatch)
    before = {thread.name for thread in threading.enumerate()}
    with open_page(past.url) as page:
        assert httpx.get(page.url, trust_env=False, timeout=DEADLINE).text.startswith(
            "<!doctype html>"
        )
        assert (
            httpx.get(page.url + "api/snapshot", trust_env=False, timeout=DEADLINE).json()["epoch"]
            == 12
        )
        with pytest.raises(PageError, match="Choose another port"):
            open_page(past.url, port=int(page.url.rstrip("/").rpartition(":")[2]))
    page.close()
    assert {thread.name for thread in threading.enumerate()} <= before
    with pytest.raises(httpx.ConnectError):
        httpx.get(page.url, trust_env=False, timeout=DEADLINE)


def test_other_machines_only_with_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    past = eventful(tmp_path / "location", monkeypatch)
    for host in ("0.0.0.0", "::", "stream.example.com", "192.0.2.1"):
        with pytest.raises(TokenRequiredError, match="a token is needed"):
            open_page(past.url, host=host)
    with open_page(past.url, host="0.0.0.0", token="sesame") as page:
        assert page.url.endswith("/#token=sesame")
        assert "sesame" not in repr(page)
    with pytest.raises(PageError, match="Check the name"):
        open_page(past.url, host="no-such-host.invalid", token="sesame")


def test_a_page_whose_source_fails_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        fails = False

        def status(self) -> QueryStatus:
            if self.fails:
                raise RuntimeError("no more")
            return QueryStatus("running")

    past = eventful(tmp_path / "location", monkeypatch)
    source = Broken()
    with open_page(past.url, source) as page:
        source.fails = True
        until(lambda: "no more" in page.watch.snapshot()["error"], "the error")
        assert (
            httpx.get(page.url + "api/snapshot", trust_env=False, timeout=DEADLINE).status_code
            == 200
        )
        source.fails = False
        until(lambda: not page.watch.snapshot()["error"], "the end of it")


def test_a_port_is_not_held_by_a_location_that_is_none(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    with pytest.raises(NotALocationError):
        open_page(str(tmp_path), port=port)
    with socket.socket() as again:
        again.bind(("127.0.0.1", port))


@pytest.mark.parametrize("error", [SystemExit(3), RuntimeError("no loop")], ids=repr)
def test_a_page_that_can_serve_no_more_says_so(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: BaseException,
) -> None:
    def failing(server: uvicorn.Server, **_: object) -> None:
        raise error

    monkeypatch.setattr(uvicorn.Server, "run", failing)
    with open_page(eventful(tmp_path / "location", monkeypatch).url) as page:
        until(lambda: page.problem == str(error), "the problem")
        assert f"has ended: {error}" in caplog.text


def test_a_page_outlives_what_one_request_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_page(eventful(tmp_path / "location", monkeypatch).url) as page:

        def ask() -> int:
            url = page.url + "api/snapshot"
            return httpx.get(url, trust_env=False, timeout=DEADLINE).status_code

        def failing(after: int) -> None:
            raise RuntimeError("no more")

        with monkeypatch.context() as patched:
            patched.setattr(page.watch, "snapshot", failing)
            assert ask() == 500
        assert ask() == 200
        assert page.problem is None

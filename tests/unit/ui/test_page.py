"""The page in a browser: it shows what the location says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.browser import document
from tests.unit.ui.histories import FOUR, Past, eventful

from millrace.ui import open_page
from millrace.ui.watch import QueryStatus, SourceLag

pytestmark = pytest.mark.browser


class Running:
    def status(self) -> QueryStatus:
        names = tuple(f"executor-{i}" for i in range(5))
        figures: dict[int, tuple[int | None, float | None]] = {
            epoch: (250_000, 200.0 + epoch) for epoch in range(1, 60)
        }
        sources = (
            SourceLag("KafkaV2[Subscribe[clicks]]", 12_345, 75.0),
            SourceLag("KafkaV2[Subscribe[old]]", 7, None),
            SourceLag("FileStreamSource[in]", None, None),
        )
        return QueryStatus("running", "", names, figures, sources)


def text(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


def test_a_stopped_query_seen_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    past = eventful(tmp_path / "location", monkeypatch)
    past.now_ms += 90_000
    with open_page(past.url) as page:
        html = document(page.url, tmp_path / "profile")
    words = text(html)
    assert past.url in words
    assert "quiet for" in words
    # The time line's marks are in the first chart and in the list.
    for title in ("rescale 2 → 4", "executor-2 lost", "rescale 3 → 2"):
        assert re.search(rf'<text class="tag k-\w+"[^>]*>{title}<', html)
        assert f'<div class="what">{title}<' in html
    assert "4 key groups went to executor-0, executor-1" in words
    assert html.count('class="band"') == 2 * 3
    # Every chart has its line, and the map a cell per key group.
    assert len(re.findall(r'<path class="line" d="M', html)) == 3
    cells = re.findall(r'<i [^>]*title="key group (\d+): (executor-\d)"', html)
    assert [int(group) for group, _ in cells] == list(range(16))
    assert [owner for _, owner in cells] == ["executor-0"] * 8 + ["executor-1"] * 8
    assert '<span class="gone">executor-2</span>' in html
    assert "waiting for the first epoch" not in words
    # Only the query's own process knows how far it is behind.
    assert re.search(r'id="sources-card" hidden', html)


def test_a_running_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    past = Past(tmp_path / "location", monkeypatch)
    past.epochs(20, FOUR)
    with open_page(past.url, Running()) as page:
        html = document(page.url + "?theme=dark", tmp_path / "profile")
    words = text(html)
    assert 'data-theme="dark"' in html
    assert "running" in words
    assert "Throughput 250 k rows/s" in words
    assert re.search(r"Epoch latency 2\d\d ms p50", words)
    assert "4 of 5 executors have key groups" in words
    assert "source rows per second" in words
    assert "Epoch 20 committed" in words
    assert "KafkaV2[Subscribe[clicks]] 12,345 1 min 15 s" in words
    assert "KafkaV2[Subscribe[old]] 7 unknown" in words
    assert "FileStreamSource" not in words
    assert 'id="sources-card" hidden' not in html
    # Without event time no row is late.
    assert "evicted" not in words


def test_the_time_of_each_operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    past = Past(tmp_path / "location", monkeypatch)
    past.epochs(3)
    past.epochs_in_time(2, late=600, evicted=1)
    with open_page(past.url) as page:
        words = text(document(page.url, tmp_path / "profile"))
    # Those epochs are of the year 2023, so the day is shown.
    assert "watermark 2023-11-14 22:12 · 1,200 late · 2 evicted" in words
    assert "Watermark 2023-11-14 22:13" in words


def test_a_page_without_its_token_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    past = eventful(tmp_path / "location", monkeypatch)
    with open_page(past.url, token="sesame") as page:
        bare, _, _ = page.url.partition("#")
        without = text(document(bare, tmp_path / "profile-1"))
        granted = text(document(page.url, tmp_path / "profile-2"))
    assert "This page needs its token" in without
    assert "executor-2 lost" not in without
    assert "executor-2 lost" in granted

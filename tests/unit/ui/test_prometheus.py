"""A real Prometheus server takes what the page serves, and answers the dashboard's questions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.conftest import ROOT
from tests.unit.ui.histories import eventful
from tests.waiting import DEADLINE, until

from millrace.ui import open_page
from millrace.ui.metrics import METRICS
from millrace_lab.servers.prometheus import prometheus

FOUND = ("millrace_epoch", "millrace_key_groups", "millrace_move_seconds_count")


def asked(url: str, path: str, **given: str) -> Any:
    answer = httpx.get(f"{url}/api/v1/{path}", params=given, trust_env=False, timeout=DEADLINE)
    body = answer.json()
    assert body["status"] == "success", body
    return body["data"]


@pytest.mark.stress
def test_prometheus_scrapes_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    past = eventful(tmp_path / "location", monkeypatch)
    with open_page(past.url) as page:
        target = page.url.removeprefix("http://").rstrip("/")
        with prometheus(tmp_path, target) as url:
            until(lambda: asked(url, "query", query="millrace_epoch")["result"], "scraped")
            (up,) = asked(url, "targets")["activeTargets"]
            assert (up["health"], up["lastError"]) == ("up", "")
            for name in FOUND:
                assert asked(url, "query", query=name)["result"], name
            (epoch,) = asked(url, "query", query="millrace_epoch")["result"]
            assert float(epoch["value"][1]) == 12
            told = asked(url, "metadata")
            names = {n.removesuffix("_total"): m.kind for n, m in METRICS.items()}
            for name, (entry, *_) in told.items():
                if name.startswith("millrace_"):
                    assert entry["type"] == names[name.removesuffix("_total")]
            dashboard = json.loads((ROOT / "deploy" / "grafana" / "millrace.json").read_text())
            for panel in dashboard["panels"]:
                for query in panel["targets"]:
                    text = query["expr"].replace("$instance", target)
                    asked(url, "query", query=text.replace("$__rate_interval", "1m"))

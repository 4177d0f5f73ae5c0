"""The page that describes the HTTP face, in a browser."""

from __future__ import annotations

import html
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.browser import document
from tests.unit.serve.counting import Counting

from millrace import clock
from millrace.serve.command import Endpoint, server
from millrace.serve.lookups import Lookups

pytestmark = pytest.mark.browser


@pytest.fixture(params=[None, "s3cret"], ids=["open", "token"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    counting = Counting(str(tmp_path / "location"))
    counting.epoch({"a": (4, 42)})
    with Lookups(counting.url) as lookups, socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        serving = server(lookups, Endpoint("127.0.0.1", port, None, request.param))
        thread = threading.Thread(target=serving.run, kwargs={"sockets": [bound]})
        thread.start()
        while not serving.started:
            clock.sleep(0.01)
        yield f"http://127.0.0.1:{port}"
        serving.should_exit = True
        thread.join()


def test_the_page_describes_and_asks(base: str, tmp_path: Path) -> None:
    text = html.unescape(document(f"{base}/docs#/v1/totals?k=a", tmp_path / "profile"))
    assert 'data-loaded="yes"' in text
    if "needs a token" in text:
        assert "/v1/totals" not in text.split("</header>")[1].split("<script>")[0]
        return
    assert "<code>/v1/totals/lookup</code>" in text
    assert "Key column, string." in text
    assert '"total": 42' in text, "the answer of the link's question"
    assert '"epoch": 1' in text


def test_the_token_decides(base: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    text = html.unescape(document(f"{base}/docs", tmp_path / "profile"))
    needs_token = "token" in request.node.callspec.id
    assert ("this server needs a token" in text) == needs_token
    assert ("<code>/v1/totals</code>" in text) == (not needs_token)

"""The page's server takes any request without failing: methods, paths, queries, headers."""

from __future__ import annotations

import http.client
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.serve.counting import Counting

from millrace.ui.server import Page, open_page

PATHS = ("/", "/api/snapshot", "/metrics", "/page.js", "/nowhere", "/api/../metrics", "//", "/%00")
TOKENS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-._~!$&'()*+,;=:@/?%"
texts = st.text(TOKENS, max_size=40)
values = st.binary(max_size=40).map(lambda b: bytes(c for c in b if c not in b"\r\n\0"))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    counting = Counting(str(tmp_path_factory.mktemp("location")))
    counting.epoch({"a": (1, 5)})
    with open_page(counting.url) as opened:
        yield opened


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    counting = Counting(str(tmp_path_factory.mktemp("location")))
    counting.epoch({"a": (1, 5)})
    with open_page(counting.url, token="right") as opened:
        yield opened


def asked(
    page: Page, method: str, path: str, headers: dict[str, bytes]
) -> tuple[int, dict[str, str], bytes]:
    host, _, port = page.url.partition("#")[0].removeprefix("http://").rstrip("/").partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    try:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in {"Host": f"{host}:{port}".encode(), **headers}.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    finally:
        connection.close()


@given(
    st.sampled_from(("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE")),
    st.sampled_from(PATHS),
    texts,
    st.dictionaries(st.sampled_from(("Range", "Cookie", "Upgrade", "Connection")), values),
)
def test_any_request_is_answered(
    page: Page, method: str, path: str, query: str, headers: dict[str, bytes]
) -> None:
    status, told, _ = asked(page, method, f"{path}?{query}", headers)
    assert status < 500
    assert method in ("GET", "HEAD") or status in (400, 404, 405)
    if status == 200:
        assert told["x-content-type-options"] == "nosniff"
        assert "default-src 'self'" in told["content-security-policy"]


@given(values, st.sampled_from(PATHS[:4]))
def test_only_this_machine_s_names_are_answered(page: Page, host: bytes, path: str) -> None:
    name = host.decode("latin-1").strip().lower()
    name = name if name.endswith("]") else name.rpartition(":")[0] or name
    status, _, _ = asked(page, "GET", path, {"Host": host})
    assert status in ((200,) if name in ("localhost", "127.0.0.1", "[::1]") else (400, 403))


@given(values, st.sampled_from(("/api/snapshot", "/metrics")))
def test_only_the_token_opens(guarded: Page, token: bytes, path: str) -> None:
    assert asked(guarded, "GET", path, {"Authorization": b"Bearer " + token})[0] in (400, 401)
    assert asked(guarded, "GET", path, {"Authorization": b"Bearer right"})[0] == 200

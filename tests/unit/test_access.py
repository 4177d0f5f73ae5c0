"""Who may connect: addresses, host names and tokens, for both servers."""

from __future__ import annotations

import pytest

from millrace import access
from millrace.errors import TokenRequiredError


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "millrace.example", ""])
@pytest.mark.parametrize("token", [None, ""])
def test_other_machines_need_a_token(host: str, token: str | None) -> None:
    with pytest.raises(TokenRequiredError, match="a token is needed: use --token"):
        access.check_reach(host, token, "use --token")
    access.check_reach(host, "s3cret", "use --token")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_none(host: str) -> None:
    access.check_reach(host, None, "use --token")


@pytest.mark.parametrize("name", [b"localhost", b"LocalHost:1", b"[::1]:80", b"127.0.0.1"])
def test_names_of_this_machine(name: bytes) -> None:
    assert access.is_local_name(name)
    assert access.refusal(name, b"", None) is None


@pytest.mark.parametrize(
    "name",
    [
        b"",
        b":80",
        b"evil.example",
        b"127.0.0.1.evil.example:80",
        b"localhost.",
        b"::1",
        b"\xff\xfe",
    ],
)
def test_other_names_are_refused(name: bytes) -> None:
    refused = access.refusal(name, b"", None)
    assert refused is not None
    assert refused[0] == 403
    # With a token, the name does not matter.
    assert access.refusal(name, b"Bearer s3cret", "s3cret") is None


@pytest.mark.parametrize("token", ["s3cret", "schlüssel", "鍵", "\udcff"])
def test_tokens(token: str) -> None:
    raw = token.encode("utf-8", "surrogateescape")
    for right in (b"Bearer " + raw, b"bearer  " + raw):
        assert access.refusal(b"elsewhere", right, token) is None
    wrong = [b"", b"Bearer", b"Bearer ", raw, b"Basic " + raw, b"Bearer " + raw + b"x"]
    for authorization in [*wrong, b"Bearer \xff\xfe", "Bearer ß".encode("latin-1")]:
        refused = access.refusal(b"localhost", authorization, token)
        assert refused is not None
        assert refused[0] == 401


def test_listening() -> None:
    with access.listen("127.0.0.1", 0) as bound:
        port = bound.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            access.listen("127.0.0.1", port)
    with pytest.raises((OSError, OverflowError)):
        access.listen("127.0.0.1", 70000)


def test_addresses_in_urls() -> None:
    assert [access.in_url(h) for h in ("::1", "127.0.0.1")] == ["[::1]", "127.0.0.1"]

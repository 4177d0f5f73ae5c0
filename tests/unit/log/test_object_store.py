"""Object stores: lost answers, outages, and what a server refuses."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from millrace.errors import (
    AlreadyExistsError,
    MissingFileError,
    StoreError,
    UnsafeStoreError,
    UnwritableLocationError,
    UsageError,
)
from millrace.log.store import check_create, open_store
from millrace.log.store.objects import ObjectStore
from millrace.log.store.retries import Retries, configured_retries
from millrace_lab.servers.proxy import Proxy

pytestmark = pytest.mark.xdist_group("s3")


def test_a_create_whose_answer_is_lost_is_this_ones(moto_bucket: str, network: Proxy) -> None:
    store = open_store(f"{moto_bucket}/location")
    store.create("other", b"x")
    network.lose_answers(1)
    store.create("manifests/1.json", b"one")
    assert store.read("manifests/1.json") == b"one"
    # Without a lost answer the same content is no excuse.
    with pytest.raises(AlreadyExistsError, match=r"manifests/1\.json exists already"):
        store.create("manifests/1.json", b"one")


def test_a_lost_answer_does_not_hide_another_winner(moto_bucket: str, network: Proxy) -> None:
    store = open_store(f"{moto_bucket}/location")
    store.create("manifests/1.json", b"theirs")
    network.lose_answers(1)
    with pytest.raises(AlreadyExistsError):
        store.create("manifests/1.json", b"ours")
    assert store.read("manifests/1.json") == b"theirs"


@pytest.mark.parametrize("verb", ["create", "put", "read", "list"])
def test_a_request_waits_until_the_network_is_back(
    moto_bucket: str, network: Proxy, verb: str
) -> None:
    store = ObjectStore(f"{moto_bucket}/location", Retries(total=600, request=2))
    store.put("there", b"x")
    given = {"create": ("new", b"y"), "put": ("new", b"y"), "read": ("there",), "list": ("",)}
    done = threading.Event()

    def ask() -> None:
        getattr(store, verb)(*given[verb])
        done.set()

    network.cut()
    asking = threading.Thread(target=ask)
    asking.start()
    # Longer than one try takes: it must have been repeated.
    assert not done.wait(3)
    network.mend()
    asking.join()
    assert done.is_set()


def test_retries_end(moto_bucket: str, network: Proxy) -> None:
    store = ObjectStore(f"{moto_bucket}/location", Retries(total=0.5, request=0.5))
    network.cut()
    with pytest.raises(StoreError, match=r"cannot create s3:.*no answer for 0\.5 s.*Nothing is"):
        store.create("a", b"x")
    with pytest.raises(StoreError, match=r"cannot read s3:.*/location/a: .*Check the network"):
        store.read("a")


def test_a_server_that_nobody_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(StoreError, match=r"no answer for 10 s.*Check the network, the endpoint"):
        check_create(open_store("s3://bucket/location"))


def test_a_bucket_that_does_not_exist(moto_bucket: str) -> None:
    store = open_store("s3://no-such-bucket/location")
    for ask in (
        lambda: check_create(store),
        lambda: store.read("a"),
        lambda: store.list(""),
        lambda: store.put("a", b""),
    ):
        with pytest.raises(UnwritableLocationError, match=r"no such bucket\. Create it, or"):
            ask()


def test_a_store_without_conditional_writes_is_refused(moto_bucket: str, network: Proxy) -> None:
    network.renamed = (b"if-none-match", b"x-none-match-")
    store = open_store(f"{moto_bucket}/location")
    with pytest.raises(UnsafeStoreError, match=r"has overwritten a file.*conditional writes"):
        check_create(store)
    assert store.list("") == []


class Answer(BaseHTTPRequestHandler):
    """The same answer to everything."""

    status = 403

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(self.status)
        body = b"<Error><Code>SignatureDoesNotMatch</Code><Message>no</Message></Error>"
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Answer]]:
    kind = type("Chosen", (Answer,), {})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        yield kind
        server.shutdown()


@pytest.mark.parametrize("status", [401, 403])
def test_credentials_that_are_refused(refusing: type[Answer], status: int) -> None:
    refusing.status = status
    store = open_store("s3://bucket/location")
    for ask in (lambda: check_create(store), lambda: store.read("a"), lambda: store.list("")):
        with pytest.raises(
            UnwritableLocationError, match=r"refuses these credentials.*AWS_.*SignatureDoesNot"
        ):
            ask()


def test_a_server_that_does_not_know_conditional_writes(refusing: type[Answer]) -> None:
    refusing.status = 501
    with pytest.raises(UnsafeStoreError, match=r"does not implement it.*If-None-Match"):
        check_create(open_store("s3://bucket/location"))


@pytest.mark.stress
def test_minio_refuses_wrong_credentials(
    minio_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another-secret")
    with pytest.raises(UnwritableLocationError, match="refuses these credentials"):
        check_create(open_store(f"{minio_bucket}/location"))


@pytest.mark.parametrize("url", ["s3://bucket/a?endpoint=http://x", "s3://bucket/a#b"])
def test_options_do_not_belong_into_the_url(url: str) -> None:
    with pytest.raises(UnwritableLocationError, match=r"options behind its path.*AWS_ENDPOINT_URL"):
        open_store(url)


@pytest.mark.parametrize("url", ["s3:///folder", "az://container/folder"])
def test_what_cannot_be_opened(url: str) -> None:
    with pytest.raises(StoreError, match=f"cannot open {url}"):
        open_store(url)


@pytest.mark.parametrize("given", ["soon", "0", "-1", "inf", "nan"])
def test_the_time_for_retries_is_a_number(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("MILLRACE_STORE_PATIENCE", given)
    with pytest.raises(UsageError, match=r"MILLRACE_STORE_PATIENCE=.* seconds above 0"):
        configured_retries()
    monkeypatch.setenv("MILLRACE_STORE_PATIENCE", "12.5")
    monkeypatch.setenv("MILLRACE_STORE_TIMEOUT", "3")
    assert configured_retries() == Retries(12.5, 3)


def test_what_is_not_there(moto_bucket: str) -> None:
    with pytest.raises(MissingFileError, match=f"{moto_bucket}/location/a is missing"):
        open_store(f"{moto_bucket}/location").read("a")

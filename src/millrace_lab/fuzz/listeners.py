"""Listeners under fuzz: the look-up server over HTTP, and the live page.

A server runs in this process on the loopback interface. A case sends it one request, or some bytes
that are almost one. Whatever it was, the answer is HTTP and no 5xx; what it shows is state; nothing
is shown to a client without the token, or to one that calls this machine by another name; no
thread of the server logs an error; and the request after it is answered as ever.
"""

from __future__ import annotations

import contextlib
import json
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from millrace import access
from millrace.serve.command import Endpoint, server
from millrace.serve.lookups import Lookups
from millrace.ui.server import open_page
from millrace_lab.fuzz import served
from millrace_lab.fuzz.flights import opened_flight
from millrace_lab.fuzz.http_requests import (
    HOST,
    METHODS,
    OTHER_HOSTS,
    WAITED_FOR,
    Answer,
    Request,
    headers,
    odd_text,
    path,
    query,
    sent,
    sent_bytes,
)
from millrace_lab.fuzz.mutations import mutate_bytes, mutate_json
from millrace_lab.fuzz.reading import Finding
from millrace_lab.fuzz.served import STATES, Served, as_text

Ask = Callable[[random.Random], str]
"""One case: sends what it draws; returns how that ended, or raises a `Finding`."""

TOKEN = "the token"
EXAMPLES = 4
"""Requests that schemathesis makes in a case of its own."""
WATCHED = ("uvicorn.error", "asyncio", "concurrent.futures", "millrace")
"""Loggers that hear of exceptions for which a client gets no answer."""


class _Errors(logging.Handler):
    """Errors that a server logs."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(self.format(record))

    def raise_any(self) -> None:
        if self.found:
            found = self.found[:]
            self.found.clear()
            raise Finding(f"an error was logged: {found[0][-400:]}")


class _Http:
    """What the look-up server and the page have in common."""

    def __init__(self, port: int, guarded: int, paths: tuple[str, ...]) -> None:
        self._port = port
        self._guarded = guarded
        """The port of a second server, which wants the token."""
        self._paths = paths
        self._errors = _Errors()

    @contextlib.contextmanager
    def watched(self) -> Iterator[Ask]:
        loggers = [logging.getLogger(name) for name in WATCHED]
        for logger in loggers:
            logger.addHandler(self._errors)
        try:
            yield self._case
        finally:
            for logger in loggers:
                logger.removeHandler(self._errors)

    def _case(self, rng: random.Random) -> str:
        end = rng.choice(self._asks())(rng)
        self._check_well()
        self._errors.raise_any()
        return end

    def _asks(self) -> tuple[Ask, ...]:
        return (self._odd, self._odd, self._unknown_host, self._without_token, self._cut)

    def _right(self, rng: random.Random) -> Request:
        """A request that deserves an answer."""
        raise NotImplementedError

    def _check_well(self) -> None:
        raise NotImplementedError

    def _check(self, answer: Answer) -> None:
        """Raise if an answer shows what it should not."""

    def _shows(self, answer: Answer) -> bool:
        """Whether an answer has data, and not only files."""
        raise NotImplementedError

    def _odd(self, rng: random.Random) -> str:
        """A request whose form is right, about something odd."""
        method, target = rng.choice(METHODS), path(rng, self._paths)
        asked = query(rng, [("after", "1"), ("_states", "total")])
        body = odd_text(rng, '{"keys": []}').encode("utf-8", "surrogatepass")
        extra = headers(rng)
        right = self._right(rng)
        request = rng.choice(
            (
                Request(method, f"{target}?{asked}", extra),
                Request(method, target, extra, body),
                Request(rng.choice(METHODS), right.target, extra, right.body),
            )
        )
        if extra:
            # It may announce a body that does not come.
            data = request.to_bytes()
            return self._judged(sent_bytes(self._port, data, WAITED_FOR, request.method))
        return self._judged(sent(self._port, request))

    def _cut(self, rng: random.Random) -> str:
        """Bytes that are almost a request, to either server."""
        right = self._right(rng)
        data = mutate_bytes(rng, right.to_bytes())
        if rng.randrange(4) == 0:
            data = data[: rng.randrange(len(data) + 1)]
        port = rng.choice((self._port, self._guarded))
        answer = sent_bytes(port, data, WAITED_FOR, right.method)
        if port == self._guarded and answer is not None and self._shows(answer):
            raise Finding(f"shown without the token: {answer.body[:200]!r}")
        return self._judged(answer)

    def _unknown_host(self, rng: random.Random) -> str:
        """A right request by way of a name that is not this machine's."""
        right = self._right(rng)
        host = rng.choice((*OTHER_HOSTS, mutate_bytes(rng, b"attacker.example").decode("latin-1")))
        host = host.translate({13: "", 10: "", 0: ""})
        answer = sent(self._port, Request(right.method, right.target, (), right.body, host))
        if self._shows(answer):
            raise Finding(
                f"shown to a client that calls the server {host!r}: {answer.body[:200]!r}"
            )
        return self._judged(answer)

    def _without_token(self, rng: random.Random) -> str:
        right = self._right(rng)
        given = odd_text(rng, f"Bearer {TOKEN}").encode("utf-8", "replace").decode("latin-1")
        given = given.translate({13: "", 10: "", 0: ""})
        scheme, _, told = given.partition(" ")
        if scheme.lower() == "bearer" and told.strip() == TOKEN:
            return "the token"
        extra = (("Authorization", given),) if rng.randrange(4) else ()
        answer = sent(self._guarded, Request(right.method, right.target, extra, right.body))
        if self._shows(answer):
            raise Finding(f"shown to {given!r}, which is not the token: {answer.body[:200]!r}")
        return self._judged(answer)

    def _judged(self, answer: Answer | None) -> str:
        if answer is None:
            return "no answer"
        if answer.status >= 500:
            raise Finding(f"{answer.status}: {answer.body[:400]!r}")
        if answer.status == 200:
            self._check(answer)
        return str(answer.status)


class _Serve(_Http):
    """The look-up server."""

    def __init__(self, port: int, guarded: int, corpus: Served) -> None:
        own = f"/v1/{corpus.operator}"
        super().__init__(
            port, guarded, ("/v1", own, f"{own}/lookup", "/openapi.json", "/docs", "/healthz", "/")
        )
        self._own = own
        self._keys = corpus.keys_as_json()
        self._rows: dict[str, dict[str, Any]] = {}
        for key, row in zip(self._keys, self._all(), strict=True):
            if row is None:
                raise Finding(f"{key} is not found")
            self._rows[as_text(key)] = row
        self._strategies = self._described_operations()

    def _asks(self) -> tuple[Ask, ...]:
        return (*super()._asks(), self._one, self._many, self._many, self._by_document)

    def _post(self, body: Any) -> Request:
        return Request("POST", f"{self._own}/lookup", (), json.dumps(body).encode())

    def _all(self) -> list[dict[str, Any] | None]:
        answer = sent(self._port, self._post({"keys": self._keys, "states": list(STATES)}))
        if answer.status != 200:
            raise Finding(f"a right look-up is answered by {answer.status}: {answer.body[:300]!r}")
        rows: list[dict[str, Any] | None] = json.loads(answer.body)["rows"]
        return rows

    def _check_well(self) -> None:
        if self._all() != list(self._rows.values()):
            raise Finding("a look-up shows other rows than at first")
        answer = sent(self._port, Request("GET", "/healthz"))
        if answer.status != 200:
            raise Finding(f"the server is not well: {answer.body[:300]!r}")

    def _right(self, rng: random.Random) -> Request:
        if rng.randrange(3) == 0:
            return self._post({"keys": rng.sample(self._keys, 2), "states": ["total"]})
        asked = urlencode(self._pairs(rng))
        return Request("GET", rng.choice((f"{self._own}?{asked}", "/v1", "/openapi.json")))

    def _pairs(self, rng: random.Random) -> list[tuple[str, str]]:
        """A key as the parameters of a query; one without NULL, which text does not have."""
        key = rng.choice([key for key in self._keys if None not in key.values()])
        return [(n, v if isinstance(v, str) else json.dumps(v)) for n, v in key.items()]

    def _one(self, rng: random.Random) -> str:
        pairs = [*self._pairs(rng), ("_states", ",".join(rng.sample(STATES, 2)))]
        return self._judged(
            sent(self._port, Request("GET", f"{self._own}?{query(rng, pairs)}", headers=()))
        )

    def _many(self, rng: random.Random) -> str:
        """A body that is JSON, and almost what is asked for."""
        body = {"keys": rng.sample(self._keys, 3), "states": rng.sample(STATES, 2)}
        return self._judged(sent(self._port, self._post(mutate_json(rng, body))))

    def _by_document(self, rng: random.Random) -> str:
        """What schemathesis makes of the OpenAPI document, and its checks of the answers."""
        from hypothesis import HealthCheck, Phase, given, seed, settings
        from hypothesis.errors import Unsatisfiable
        from schemathesis.specs.openapi.checks import (
            negative_data_rejection,
            positive_data_acceptance,
        )

        @seed(rng.getrandbits(64))
        @settings(
            max_examples=EXAMPLES,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=rng.choice(self._strategies))
        def run(case: Any) -> None:
            answer = case.call()
            # A document cannot say which of the times that it allows Python has.
            left_out = [positive_data_acceptance]
            if answer.status_code == 413:
                # That is how too many keys are rejected; the check knows other codes.
                left_out.append(negative_data_rejection)
            case.validate_response(answer, excluded_checks=left_out)

        # An operation without parameters cannot be asked wrongly.
        with contextlib.suppress(Unsatisfiable):
            try:
                run()
            except BaseExceptionGroup as failures:
                # Those of schemathesis are no `Exception`.
                told = "; ".join(str(failure) for failure in failures.exceptions)
                raise Finding(f"not as described: {told}") from failures
        return "as described"

    def _described_operations(self) -> list[Any]:
        import schemathesis

        document: Any = schemathesis.openapi.from_url(f"http://{HOST}:{self._port}/openapi.json")
        operations = [found.ok() for found in document.get_all_operations()]
        return [
            operation.as_strategy(generation_mode=mode)
            for operation in operations
            for mode in schemathesis.GenerationMode
        ]

    def _shows(self, answer: Answer) -> bool:
        is_json = answer.headers.get("content-type") == "application/json"
        return answer.status == 200 and is_json and answer.body not in (b"", b'{"status": "ok"}')

    def _check(self, answer: Answer) -> None:
        if not self._shows(answer):
            return
        shown = json.loads(answer.body)
        for row in [*shown.get("rows", ()), shown.get("row")]:
            known = self._rows.get(
                as_text({name: row.get(name) for name in served.KEYS} if row else {})
            )
            if row is not None and (known is None or not row.items() <= known.items()):
                raise Finding(f"a row that is not in the state: {as_text(row)[:300]}")


class _Page(_Http):
    """The live page."""

    def __init__(self, port: int, guarded: int) -> None:
        files = ("/", "/page.js", "/page.css")
        super().__init__(port, guarded, (*files, "/api/snapshot", "/metrics", "/api"))

    def _right(self, rng: random.Random) -> Request:
        target = rng.choice((f"/api/snapshot?after={rng.randrange(5)}", "/metrics"))
        return Request(rng.choice(("GET", "GET", "GET", "HEAD")), target)

    def _check_well(self) -> None:
        for target in ("/api/snapshot", "/metrics"):
            answer = sent(self._port, Request("GET", target))
            if answer.status != 200 or not self._shows(answer):
                raise Finding(f"{target} is answered by {answer.status}: {answer.body[:300]!r}")
        self._check(sent(self._port, Request("GET", "/api/snapshot")))

    def _shows(self, answer: Answer) -> bool:
        kind = answer.headers.get("content-type", "")
        is_file = kind.startswith(("text/html", "text/css", "text/javascript"))
        return answer.status == 200 and bool(answer.body) and not is_file

    def _check(self, answer: Answer) -> None:
        for name in ("content-security-policy", "x-content-type-options"):
            if name not in answer.headers:
                raise Finding(f"an answer lacks the header {name}")
        if answer.headers.get("content-type") == "application/json" and answer.body:
            found = json.loads(answer.body)
            if found["error"]:
                raise Finding(f"the page shows an error: {found['error']}")


@contextlib.contextmanager
def _serving(location: str, token: str | None) -> Iterator[int]:
    """The look-up server; yields its port."""
    with Lookups(location) as lookups, access.listen(HOST, 0) as bound:
        serving = server(lookups, Endpoint(HOST, 0, None, token))
        thread = threading.Thread(target=serving.run, kwargs={"sockets": [bound]}, daemon=True)
        thread.start()
        while not serving.started and thread.is_alive():
            time.sleep(0.01)
        try:
            yield bound.getsockname()[1]
        finally:
            serving.should_exit = True
            thread.join()


@contextlib.contextmanager
def _opened_serve(root: Path) -> Iterator[Ask]:
    corpus = served.make(root)
    with (
        _serving(corpus.location, None) as port,
        _serving(corpus.location, TOKEN) as guarded,
        _Serve(port, guarded, corpus).watched() as ask,
    ):
        yield ask


@contextlib.contextmanager
def _opened_page(root: Path) -> Iterator[Ask]:
    corpus = served.make(root)
    with ExitStack() as opened:
        pages = [opened.enter_context(open_page(corpus.location, token=t)) for t in (None, TOKEN)]
        ports = [int(page.url.partition("#")[0].rstrip("/").rpartition(":")[2]) for page in pages]
        yield opened.enter_context(_Page(ports[0], ports[1]).watched())


LISTENERS: dict[str, Callable[[Path], AbstractContextManager[Ask]]] = {
    "serve": _opened_serve,
    "flight": opened_flight,
    "page": _opened_page,
}
"""Starts a listener over a location that it writes to a new folder."""

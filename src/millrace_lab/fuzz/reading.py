"""Every way to read a location, and what may come of it after a mutation."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import millrace as mr
from millrace.errors import CorruptionError, MillraceError
from millrace.log.inspection import inspect
from millrace.log.layout import IDENTITY
from millrace.log.retention import garbage
from millrace.log.spark_logs import check_logs, is_interrupted, offset_lines, planned
from millrace.log.store import LocalStore
from millrace.reading import results
from millrace.reconfigure.inbox import Inbox
from millrace.reconfigure.requests import Requests
from millrace.ui.metrics import exposition
from millrace.ui.watch import Watch
from millrace_lab.fuzz.cases import DAMAGED, OTHER_ROWS
from millrace_lab.fuzz.corpus import EPOCHS, Corpus, journal_of, shown_by, shown_by_sql

MAY_BE_NAMED = (IDENTITY, "manifests/", "segments/", "requests/", "leases/", "views/", "spark/")


class Finding(AssertionError):
    """What must not happen."""


Step = Callable[[Path, Corpus, str], None]


def _newest(root: Path, corpus: Corpus, effect: str) -> None:
    with mr.open(str(root)) as reader:
        shown = dict(shown_by(reader))
        for name in reader.operators:
            reader.get("user-1", operator=name)
        epoch = int(reader.epoch)
    _compare(shown, epoch, corpus, effect)


def _by_sql(root: Path, corpus: Corpus, effect: str) -> None:
    with mr.open(str(root)) as reader:
        shown = dict(shown_by_sql(reader))
        for table in ("epochs", "segments", "key_groups", "operators"):
            reader.sql(f"from millrace_{table}")
        epoch = int(reader.epoch)
    _compare(shown, epoch, corpus, effect)


def _earlier(root: Path, corpus: Corpus, effect: str) -> None:
    epoch = EPOCHS // 2
    with mr.open(str(root), epoch=epoch) as reader:
        shown = dict(shown_by(reader))
    _compare(shown, epoch, corpus, effect)


def _compare(shown: dict[str, frozenset[str]], epoch: int, corpus: Corpus, effect: str) -> None:
    if effect == OTHER_ROWS:
        return
    for table, rows in shown.items():
        allowed = corpus.shown.get(epoch, {}).get(table) if effect == DAMAGED else None
        if allowed is not None and rows != allowed:
            raise Finding(f"{table} at epoch {epoch} has other rows than were written")
        if effect != DAMAGED and not rows <= corpus.ever(table) and table in corpus.tables:
            odd = next(iter(rows - corpus.ever(table)))
            raise Finding(f"{table} at epoch {epoch} has a row that no epoch wrote: {odd[:300]}")


def _inspected(root: Path, corpus: Corpus, effect: str) -> None:
    inspect(journal_of(root))


def _collected(root: Path, corpus: Corpus, effect: str) -> None:
    garbage(journal_of(root), 2)


def _watched(root: Path, corpus: Corpus, effect: str) -> None:
    watch = Watch(str(root))
    watch.refresh()
    if watch.problem:
        _check_message(watch.problem, root)
    json.dumps(watch.snapshot(), allow_nan=False, ensure_ascii=False).encode()
    exposition(watch).encode()


def _requested(root: Path, corpus: Corpus, effect: str) -> None:
    requests = Requests(LocalStore(str(root)))
    for id_ in requests.ids():
        try:
            requests.read(id_)
            requests.answered(id_)
        except MillraceError as error:
            _check_message(str(error), root)
    list(Inbox(requests, "run").take_new())
    requests.tidy()


def _viewed(root: Path, corpus: Corpus, effect: str) -> None:
    store = LocalStore(str(root))
    for name in results.names(store):
        results.read(store, name)
    with mr.open(str(root)) as reader:
        for name in reader.views():
            found = reader.sql(f"from views.{name}").to_pylist()
            if found != [{"n": len(corpus.shown[EPOCHS]["tested."])}]:
                raise Finding(f"view {name} shows {found}")


def _restarted(root: Path, corpus: Corpus, effect: str) -> None:
    store = LocalStore(str(root))
    is_interrupted(store)
    for batch in planned(store)[-3:]:
        offset_lines(store, batch)
    check_logs(store, EPOCHS - 1)


STEPS: dict[str, tuple[Step, ...]] = {
    "manifest": (_newest, _earlier, _inspected, _collected, _watched),
    "segment": (_newest, _earlier, _inspected),
    "identity": (_newest, _inspected, _watched),
    "request": (_requested, _watched, _inspected),
    "lease": (_collected, _inspected, _newest),
    "view": (_viewed, _inspected),
    "spark": (_restarted, _inspected),
    "names": (_newest, _requested, _viewed, _collected, _watched, _inspected),
}


def read_everything(
    target: str, root: Path, corpus: Corpus, effect: str, *, by_sql: bool
) -> Iterator[str]:
    """Read a mutated location; yields how each step ended, and raises a `Finding`."""
    steps = STEPS[target]
    for step in (*steps, _by_sql) if by_sql and _newest in steps else steps:
        try:
            step(root, corpus, effect)
        except MillraceError as error:
            if isinstance(error, CorruptionError):
                _check_message(str(error), root)
            yield type(error).__name__
        else:
            yield "read"


def _check_message(text: str, root: Path) -> None:
    if str(root) not in text and not any(name in text for name in MAY_BE_NAMED):
        raise Finding(f"an error does not name the file: {text[:300]}")

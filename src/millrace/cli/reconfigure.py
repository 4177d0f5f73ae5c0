"""`millrace rescale`, `move`, `drain`, `assignment`: talk to a running query through its location.

A command checks what it can, writes a request, and waits for the query's driver. If no driver takes
it, the request is withdrawn, unless `--queue` leaves it for the next start.
"""

from __future__ import annotations

import contextlib
import json as json_
import threading
from collections.abc import Iterator
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from millrace import clock
from millrace.cli.failures import Failure, explained, interrupts_set
from millrace.errors import MalformedError, UsageError
from millrace.ids import OperatorName, Shard, table_name
from millrace.keygroups import Assignment, format_ranges, listed_ranges
from millrace.keygroups.assignment import check_parallelism
from millrace.log import Journal, open_store
from millrace.log.trail import Trail
from millrace.reconfigure.requests import Answer, Request, Requests
from millrace.reconfigure.strategies import STRATEGIES

LOCATION = click.argument("location")
STRATEGY = click.option(
    "--strategy",
    type=click.Choice(list(STRATEGIES)),
    default="live",
    show_default=True,
    help="How state gets to its new owners.",
)
OPERATOR = click.option("--operator", help="Only this operator; default: all.")
TIMEOUT = click.option(
    "--timeout", default=20.0, show_default=True, help="Seconds to wait for a running query."
)
QUEUE = click.option(
    "--queue", is_flag=True, help="If no query runs, leave the request for its next start."
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def _open(location: str) -> tuple[Requests, Trail, int]:
    with explained():
        journal = Journal.open(open_store(location))
        return Requests(journal.store), journal.newest(), journal.identity.key_groups


def ask(
    location: str,
    kind: str,
    details: dict[str, Any],
    *,
    timeout: float,
    as_json: bool,
    queue: bool = False,
) -> None:
    """Write a request, wait for its answer, and print it; what is None is left out."""
    requests, _, _ = _open(location)
    console = Console(stderr=True)
    given = {key: value for key, value in details.items() if value is not None}
    with explained():
        with console.status(f"waiting for the query on {location}"), _withdrawn(requests) as asked:
            request = _submit(requests, kind, given, asked)
            taken = _await_taken(requests, request, timeout)
        if not taken and queue:
            click.echo(f"request {request.id} is left for the next start of {location}")
            return
        if not taken:
            _withdraw(requests, request, location, timeout)
        with console.status(f"{kind} is under way"), _left_alone(location, request):
            answer = _await_answer(requests, request)
    if as_json:
        body = {"request": request.id, "state": answer.state, "reason": answer.reason}
        click.echo(json_.dumps({**body, "report": answer.report}))
    else:
        click.echo(_described(kind, answer))
    if answer.state != "done":
        raise SystemExit(1)


@contextlib.contextmanager
def _withdrawn(requests: Requests) -> Iterator[list[Request]]:
    """After Ctrl-C, withdraw the requests that were put into the list."""
    asked: list[Request] = []
    try:
        yield asked
    except KeyboardInterrupt:
        for request in asked:
            requests.answer(request.id, Answer("cancelled", "interrupted before a query took it"))
        raise


def _submit(
    requests: Requests, kind: str, details: dict[str, Any], asked: list[Request]
) -> Request:
    """Write a request; Ctrl-C waits until it is known what was written."""
    interrupted = threading.Event()
    with interrupts_set(interrupted):
        asked.append(requests.submit(kind, **details))
    if interrupted.is_set():
        raise KeyboardInterrupt
    return asked[-1]


@contextlib.contextmanager
def _left_alone(location: str, request: Request) -> Iterator[None]:
    """After Ctrl-C, say that the query still carries out the request."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo(
            f"the query still carries out request {request.id}; to stop it: "
            f"millrace cancel {location} {request.id}",
            err=True,
        )
        raise


def _await_taken(requests: Requests, request: Request, timeout: float) -> bool:
    until = clock.stopwatch() + timeout
    while clock.stopwatch() < until:
        if requests.is_taken(request.id) or requests.answered(request.id):
            return True
        clock.sleep(0.2)
    return False


def _withdraw(requests: Requests, request: Request, location: str, timeout: float) -> None:
    """Answer it ourselves, unless the query just has."""
    if requests.answer(request.id, Answer("cancelled", "no running query took it")):
        # A driver first takes a request and then looks for an answer, so one of the two sees the
        # other; if both do, the driver knows better what it saw first.
        if requests.is_taken(request.id):
            raise Failure(
                f"a query on {location} took the request just as it was withdrawn. "
                f"`millrace assignment {location}` shows whether it carries it out anyway."
            )
        raise Failure(
            f"no query on {location} took the request within {timeout:g} seconds, so it was "
            "withdrawn: the query seems to be stopped. Start it, or add --queue to leave the "
            "request for its next start."
        )


def _await_answer(requests: Requests, request: Request) -> Answer:
    while True:
        answer = requests.answered(request.id)
        if answer is not None:
            return answer
        clock.sleep(0.2)


def _described(kind: str, answer: Answer) -> str:
    if answer.state != "done":
        return f"{kind}: {answer.state}, {answer.reason}"
    report = answer.report
    if not report.get("shards"):
        return f"{kind}: done"
    shards = ", ".join(f"{name} {old} -> {new}" for name, (old, new) in report["shards"].items())
    return (
        f"{kind}: done, {shards}; {report['key_groups']} key groups and "
        f"{report['bytes'] / 1e6:.1f} MB moved in {report['seconds']:.1f} s and "
        f"{report['epochs']} epochs"
    )


@click.command(epilog="Example: millrace rescale /data/totals --parallelism 4 --strategy live")
@LOCATION
@click.option("--parallelism", type=int, required=True, help="Shards per operator.")
@STRATEGY
@OPERATOR
@TIMEOUT
@QUEUE
@JSON
def rescale(
    location: str, parallelism: int, strategy: str, operator: str | None, **waiting: Any
) -> None:
    """Change the number of shards of a running query."""
    _, trail, key_groups = _open(location)
    with explained():
        check_parallelism(parallelism, key_groups)
        _check_operator(trail, operator)
    details = {"parallelism": parallelism, "strategy": strategy, "operator": operator}
    ask(location, "rescale", details, **waiting)


@click.command(epilog="Example: millrace move /data/totals 0-15,40 executor-3")
@LOCATION
@click.argument("key_groups")
@click.argument("executor")
@STRATEGY
@OPERATOR
@TIMEOUT
@QUEUE
@JSON
def move(
    location: str,
    key_groups: str,
    executor: str,
    strategy: str,
    operator: str | None,
    **waiting: Any,
) -> None:
    """Give key groups, such as 0-15,40, to an executor."""
    try:
        groups = listed_ranges(key_groups).tolist()
    except MalformedError:
        groups = []
    if not groups:
        raise Failure(f"{key_groups!r} names no key groups; write 0-15,40.")
    _, trail, known = _open(location)
    if max(groups) >= known:
        raise Failure(f"{key_groups!r}: key groups have the numbers 0 to {known - 1}.")
    with explained():
        _check_operator(trail, operator)
    details = {"key_groups": groups, "to": executor, "strategy": strategy, "operator": operator}
    ask(location, "move", details, **waiting)


@click.command(epilog="Example: millrace drain /data/totals executor-1")
@LOCATION
@click.argument("executor")
@click.option("--undo", is_flag=True, help="Let the executor own key groups again.")
@STRATEGY
@TIMEOUT
@QUEUE
@JSON
def drain(location: str, executor: str, undo: bool, strategy: str, **waiting: Any) -> None:
    """Move everything away from an executor of a running query."""
    kind = "undrain" if undo else "drain"
    ask(location, kind, {"executor": executor, "strategy": strategy}, **waiting)


@click.command(epilog="Example: millrace cancel /data/totals 1794799863354-e5de1343")
@LOCATION
@click.argument("request")
@TIMEOUT
@JSON
def cancel(location: str, request: str, **waiting: Any) -> None:
    """Withdraw a request; what has not moved yet stays where it is."""
    requests, _, _ = _open(location)
    with explained():
        if requests.answered(requests.read(request).id) is not None:
            raise UsageError(f"request {request} has already ended; there is nothing to cancel.")
    ask(location, "cancel", {"request": request}, **waiting)


@click.command(epilog="Example: millrace assignment /data/totals")
@LOCATION
@OPERATOR
@JSON
def assignment(location: str, operator: str | None, as_json: bool) -> None:
    """Show who owns which key groups, as of the last committed epoch."""
    requests, trail, _ = _open(location)
    with explained():
        _check_operator(trail, operator)
        pending = requests.pending()
    names = [OperatorName(operator)] if operator else sorted(trail.specs)
    found = {name: trail.operator(table_name(name)).assignment for name in names}
    if as_json:
        body = {name: a.to_json() for name, a in found.items() if a is not None}
        ids = [r.id for r in pending]
        click.echo(json_.dumps({"epoch": trail.epoch, "operators": body, "pending": ids}))
        return
    console = Console()
    for name, owners in found.items():
        if owners is not None:
            console.print(_table(name, owners, trail.epoch))
    for request in pending:
        details = ", ".join(f"{k}={v}" for k, v in request.details.items())
        console.print(f"pending: {request.kind} {details} ({request.id})")


def _table(name: str, owners: Assignment, epoch: int) -> Table:
    table = Table(title=f"{name}, epoch {epoch}")
    for column in ("shard", "executor", "key groups", "number"):
        table.add_column(column, justify="right" if column in ("shard", "number") else "left")
    for shard in range(owners.shards):
        groups = owners.groups_of(Shard(shard)).tolist()
        where = owners.executor_of(shard) or "anywhere"
        table.add_row(str(shard), where, format_ranges(groups), str(len(groups)))
    return table


def _check_operator(trail: Trail, operator: str | None) -> None:
    if operator is not None and operator not in trail.specs:
        known = ", ".join(sorted(trail.specs)) or "none yet"
        raise UsageError(f"there is no operator {operator!r}. The query has {known}.")

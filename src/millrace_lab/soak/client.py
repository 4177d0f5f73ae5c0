"""The client of a soak: asks `millrace serve`, and compares each answer at the epoch that it names.

A round is some look-ups over HTTP one by one, one of many keys, and a batch over Arrow Flight. The
server is killed and started again, so an answer may not come; one that comes must be right.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import duckdb
import pyarrow as pa
from pyarrow import flight

from millrace import clock
from millrace_lab.soak import workload as w
from millrace_lab.soak.state_check import create_input, names_after, totals_after
from millrace_lab.soak.witness import OUTAGE, Report, Round, run

ANSWER_SECONDS = 120.0
"""A server that takes longer hangs, however busy the machine is."""
SINGLE = 16
"""Keys that are asked for one by one in a round."""
MANY = 100
"""Keys of a request for many."""
EPOCHS = 4
"""Epochs whose expected rows are kept."""

SETTLE_SECONDS = 30.0
"""After an outage of the store, a server that follows the log has tried again by then."""

Row = dict[str, Any]


class NoAnswerError(Exception):
    """The server hangs."""


class RefusedError(Exception):
    """The server answered that it cannot."""


class Expected:
    """What look-ups must find, by epoch."""

    def __init__(self, chosen_keys: bool) -> None:
        self._chosen_keys = chosen_keys
        self._kept: dict[int, dict[str, dict[Any, Row]]] = {}

    def row(self, epoch: int, operator: str, key: object) -> Row | None:
        """The row of a key; None if it has not come yet."""
        if epoch not in self._kept:
            self._kept[epoch] = self._compute(epoch)
            for old in sorted(self._kept)[:-EPOCHS]:
                del self._kept[old]
        return self._kept[epoch][operator].get(key)

    def _compute(self, epoch: int) -> dict[str, dict[Any, Row]]:
        with duckdb.connect(":memory:") as db:
            # Spark's batch 0 made epoch 1.
            create_input(db, epoch, self._chosen_keys)
            return {
                w.TOTALS: {row["k"]: row for row in _rows(db, totals_after())},
                w.NAMES: {row["name"]: row for row in _rows(db, names_after())},
            }


class Client:
    """The rounds."""

    def __init__(self, folder: Path, chosen_keys: bool) -> None:
        self._address = folder / "serve.json"
        self._outage = folder / OUTAGE
        self._expected = Expected(chosen_keys)
        self._texts = w.names(chosen_keys)
        self._rounds = 0

    def __call__(self, report: Report) -> None:
        if not self._address.exists():
            return
        address = json.loads(self._address.read_text())
        self._rounds += 1
        try:
            self._ask_http(report, address["http"])
            self._ask_flight(report, address["flight"])
        except TimeoutError as error:
            raise NoAnswerError(f"serve did not answer in {ANSWER_SECONDS:.0f} s") from error
        except RefusedError as error:
            # Without its store it may refuse; it may have been asked just before, or just after.
            if not self._outage.exists():
                clock.sleep(SETTLE_SECONDS)
                self._ask_again(report, address["http"], error)
            report.counts["answers: the store is out of reach"] += 1
        except (http.client.HTTPException, flight.FlightError, pa.ArrowException) as error:
            # It was killed, as far as this end can tell; whether it was, its supervisor knows.
            report.counts[f"met {type(error).__name__}"] += 1

    def _ask_again(self, report: Report, port: int, refusal: RefusedError) -> None:
        """An outage may just have ended; a server that still refuses has a problem of its own."""
        try:
            self._ask_http(report, port)
        except RefusedError:
            if not self._outage.exists():
                raise refusal from None

    def _keys(self, number: int) -> list[int]:
        """Other ones in every round; some never come."""
        first = self._rounds * number
        return [(first + at) % (w.KEYS + 20) for at in range(number)]

    def _ask_http(self, report: Report, port: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_SECONDS)
        try:
            for key in self._keys(SINGLE):
                answer = _got(connection, "GET", f"/v1/{w.TOTALS}?{urlencode({'k': key})}")
                self._judge(report, answer, w.TOTALS, "k", [key], [answer and answer["row"]])
            for text in self._texts[:4]:
                answer = _got(connection, "GET", f"/v1/{w.NAMES}?{urlencode({'name': text})}")
                self._judge(report, answer, w.NAMES, "name", [text], [answer and answer["row"]])
            many = self._keys(MANY)
            body = json.dumps({"keys": [{"k": key} for key in many]})
            answer = _got(connection, "POST", f"/v1/{w.TOTALS}/lookup", body)
            self._judge(report, answer, w.TOTALS, "k", many, answer["rows"] if answer else [])
        finally:
            connection.close()

    def _ask_flight(self, report: Report, port: int) -> None:
        questions = (
            (w.TOTALS, pa.table({"k": pa.array(self._keys(4 * MANY), pa.int64())})),
            (w.NAMES, pa.table({"name": self._texts})),
        )
        with flight.connect(f"grpc://127.0.0.1:{port}") as client:
            for operator, keys in questions:
                options = flight.FlightCallOptions(timeout=ANSWER_SECONDS)
                descriptor = flight.FlightDescriptor.for_path(operator)
                writer, reader = client.do_exchange(descriptor, options)
                with writer:
                    writer.begin(keys.schema)
                    writer.write_table(keys)
                    writer.done_writing()
                    for rows, standing in _batches(reader):
                        found = [row if row.pop("_found") else None for row in rows.to_pylist()]
                        [name] = keys.column_names
                        asked = keys[name].to_pylist()
                        self._judge(report, standing, operator, name, asked, found)
                        report.counts["Flight batches"] += 1

    def _judge(
        self,
        report: Report,
        answer: Row | None,
        operator: str,
        key: str,
        asked: list[Any],
        found: list[Row | None],
    ) -> None:
        if answer is None:
            report.counts["answers: no epoch yet"] += 1
            return
        epoch = answer["epoch"]
        if epoch < report.epoch:
            report.mismatches.append(f"serve went from epoch {report.epoch} back to {epoch}")
        report.epoch = max(report.epoch, epoch)
        report.counts["look-ups compared"] += len(asked)
        if len(found) != len(asked):
            report.mismatches.append(f"serve: {len(found)} rows for {len(asked)} {operator}")
            return
        for wanted_key, row in zip(asked, found, strict=True):
            wanted = self._expected.row(epoch, operator, wanted_key)
            if row is None and wanted is None:
                continue
            if row is None or wanted is None or {key: wanted_key, **row} != wanted:
                report.mismatches.append(
                    f"serve at epoch {epoch}, {operator} of {wanted_key!r}: {row}, not {wanted}"
                )


def _rows(db: duckdb.DuckDBPyConnection, sql: str) -> Iterator[Row]:
    db.execute(sql)
    names = [column[0] for column in db.description or ()]
    for values in db.fetchall():
        yield dict(zip(names, values, strict=True))


def _got(
    connection: http.client.HTTPConnection, method: str, path: str, body: str | None = None
) -> Row | None:
    """An answer; None before the first epoch."""
    connection.request(method, path, body)
    response = connection.getresponse()
    text = response.read()
    if response.status == 503:
        return None
    if response.status != 200:
        raise RefusedError(f"{method} {path} was answered by {response.status}: {text[:500]!r}")
    answer: Row = json.loads(text)
    return answer


def _batches(reader: Any) -> Iterator[tuple[pa.RecordBatch, Row]]:
    for chunk in reader:
        if chunk.data is not None:
            yield chunk.data, json.loads(chunk.app_metadata.to_pybytes())


def _prepare(folder: Path, chosen_keys: bool) -> Round:
    return Client(folder, chosen_keys)


if __name__ == "__main__":
    run(_prepare)

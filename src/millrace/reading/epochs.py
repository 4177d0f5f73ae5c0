"""Finding an epoch: the last one, the last as of a time, or that of a Spark batch."""

from __future__ import annotations

import datetime as dt
from bisect import bisect_right

from millrace.errors import UnknownEpochError, UsageError
from millrace.ids import Epoch
from millrace.log.journal import Journal


def no_epoch_yet(location: str) -> UnknownEpochError:
    return UnknownEpochError(
        f"{location} has no committed epoch yet. Start its query, or wait for its first epoch."
    )


def epoch_at(journal: Journal, moment: dt.datetime | str) -> Epoch:
    """The last epoch that was committed at or before a time."""
    wanted = to_ms(moment)
    epochs = journal.epochs()
    if not epochs:
        raise no_epoch_yet(journal.store.url)
    # Epochs are committed one after the other, so their times ascend.
    until = bisect_right(epochs, wanted, key=lambda epoch: journal.read(epoch)[0].time_ms)
    if until == 0:
        first = from_ms(journal.read(epochs[0])[0].time_ms)
        raise UnknownEpochError(
            f"{journal.store.url} has no epoch as of {moment}: the first that is retained, epoch "
            f"{epochs[0]}, was committed at {first.isoformat()}. {journal.retained()}"
        )
    return epochs[until - 1]


def epoch_of_batch(journal: Journal, batch_id: int) -> Epoch:
    """The last epoch of a Spark batch."""

    def batch_of(epoch: Epoch) -> int:
        found = journal.read(epoch)[0].batch_id
        return -1 if found is None else found

    epochs = journal.epochs()
    until = bisect_right(epochs, batch_id, key=batch_of)
    if until and batch_of(epochs[until - 1]) == batch_id:
        return epochs[until - 1]
    first = journal.read(epochs[0])[0].batch_id if epochs else None
    last = journal.read(epochs[-1])[0].batch_id if epochs else None
    raise UnknownEpochError(
        f"batch {batch_id} of {journal.store.url} is not available: batches {first} to {last} are "
        "retained."
    )


def to_ms(moment: dt.datetime | str) -> int:
    """Milliseconds since 1970; a time without a time zone is in UTC."""
    if isinstance(moment, str):
        try:
            moment = dt.datetime.fromisoformat(moment.strip())
        except ValueError as error:
            raise UsageError(
                f"as_of={moment!r} is not a time. Give one like '2026-03-01 12:30:00' (UTC) or "
                "'2026-03-01T12:30:00+01:00'."
            ) from error
    if not isinstance(moment, dt.datetime):
        raise UsageError(f"as_of={moment!r}: give a datetime, or text like '2026-03-01 12:30:00'.")
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    return int(moment.timestamp() * 1000)


def from_ms(moment: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(moment / 1000, dt.UTC)

"""Views: results of queries on state that are kept up to date while a query runs.

A thread of the driver refreshes the views that are due after an epoch, so epochs do not wait for
them. If epochs are faster than a view, it skips some. A result is always complete, and names its
epoch.
"""

from __future__ import annotations

import logging
import threading

import pyarrow as pa

from millrace.errors import InvalidNameError, UnknownViewError, UsageError
from millrace.ids import Epoch
from millrace.log.store import Store
from millrace.reading import results
from millrace.reading.reader import Reader
from millrace.reading.results import ViewResult
from millrace.repeating import UNTIL_WOKEN, Repeating

_log = logging.getLogger("millrace")


class View:
    """A result that is kept up to date while its query runs."""

    def __init__(self, name: str, sql: str, every: int, store: Store) -> None:
        self.name = name
        self.sql = sql
        self.every = every
        self._store = store
        self._done = threading.Condition()
        self._result: ViewResult | None = None
        self.error: BaseException | None = None
        """Why the last refresh failed, if it did."""

    @property
    def epoch(self) -> Epoch:
        """The epoch of the result; 0 before the first."""
        return self._result.epoch if self._result is not None else Epoch(0)

    def result(self) -> pa.Table:
        """The newest result."""
        with self._done:
            if self.error is not None:
                raise self.error
            if self._result is None:
                raise UnknownViewError(
                    f"view {self.name!r} has no result yet: the query has committed no epoch."
                )
            return self._result.rows

    def wait(self, epoch: int, timeout: float = 60.0) -> pa.Table:
        """The result once it is of an epoch or of a later one."""
        with self._done:
            done = self._done.wait_for(lambda: self.epoch >= epoch or self.error, timeout)
            if not done:
                raise UnknownViewError(
                    f"view {self.name!r} is at epoch {self.epoch}, not at {epoch}, after "
                    f"{timeout:g} s."
                )
        return self.result()

    def is_due(self, epoch: Epoch) -> bool:
        return self.epoch == 0 or epoch - self.epoch >= self.every

    def refresh(self, reader: Reader, epoch: Epoch) -> None:
        """Take the result at an epoch, or at a later one."""
        try:
            epoch, rows = reader.sql_at(self.sql, epoch)
            result = ViewResult(self.name, epoch, self.sql, rows)
            results.write(self._store, result)
            error: BaseException | None = None
        except BaseException as failed:
            # Whatever it is, it is shown by result(); see millrace.repeating.
            error = failed
            if self.error is None:
                _log.warning("view %r was not refreshed: %s", self.name, failed)
        with self._done:
            self.error = error
            if error is None:
                self._result = result
            self._done.notify_all()

    def __repr__(self) -> str:
        return f"<View {self.name} epoch={self.epoch}>"


class Views:
    """The views of a running query."""

    def __init__(self, reader: Reader, store: Store) -> None:
        self._reader = reader
        self._store = store
        self._views: dict[str, View] = {}
        self._lock = threading.Lock()
        self._epoch = Epoch(0)
        self._tried = Epoch(0)
        self._thread = Repeating("views", self._refresh)

    def add(self, name: str, sql: str, every: int, epoch: Epoch) -> View:
        """Keep a result up to date from now on; refuses what cannot be run."""
        if not results.is_view_name(str(name)):
            raise InvalidNameError(
                f"{name!r} cannot be a view's name: use letters, digits and '_', at most 63, "
                "beginning with a letter."
            )
        if type(every) is not int or every < 1:
            raise UsageError(f"every={every!r}: it must be a number of epochs, 1 or more.")
        view = View(name, sql, every, self._store)
        if epoch:
            view.refresh(self._reader, epoch)
            if view.error is not None:
                raise view.error
        else:
            # There is nothing to show yet, but SQL that cannot run is refused now.
            self._reader.sql(sql)
        with self._lock:
            self._views[name] = view
            self._epoch = max(self._epoch, epoch)
            if not self._thread.is_alive:
                self._thread.start()
        return view

    def get(self, name: str) -> View:
        if name not in self._views:
            known = ", ".join(map(repr, self._views)) or "none"
            raise UnknownViewError(f"this query has no view {name!r}; its views are: {known}.")
        return self._views[name]

    def after_epoch(self, epoch: Epoch) -> None:
        """An epoch was committed."""
        self._epoch = epoch
        self._thread.wake()

    def _refresh(self) -> float:
        """Refresh what is due. What fails is tried again after the next epoch, not at once."""
        if self._epoch > self._tried:
            with self._lock:
                self._tried = self._epoch
                due = [view for view in self._views.values() if view.is_due(self._tried)]
            for view in due:
                view.refresh(self._reader, self._tried)
        return UNTIL_WOKEN

    def close(self) -> None:
        """Refresh what is due a last time, and stop."""
        self._thread.close(30)
        self._refresh()

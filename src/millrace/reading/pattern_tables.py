"""A pattern's partial matches as a table, and the rows that they hold as another."""

from __future__ import annotations

from millrace.operators.join.layout import EVENT
from millrace.operators.operator import ResultColumn
from millrace.operators.pattern.layout import NUMBER, shown_partials
from millrace.reading.owned_table import EvictedTable


class PartialMatches(EvictedTable):
    """A row per start of a match that is not settled: since when, and what it waits for."""

    def _results(self) -> list[ResultColumn]:
        return shown_partials(list(self.description.key_schema), self.description.spec)


class TakenRows(EvictedTable):
    """A row per row that a partial match has taken, or took not long ago."""

    def _results(self) -> list[ResultColumn]:
        stored = self.description.tables[self.state].schema
        return [
            ResultColumn(field.name, field.type, (field.name,))
            for field in stored
            if field.name not in (EVENT, NUMBER)
        ]

"""NEXMark's queries as programs, each beside the same query in DuckDB's SQL.

A program gets the events as a streaming DataFrame. It emits rows, or keeps the answer as state. In
DuckDB, and in Flink, the events are the views `person`, `auction` and `bid`, each with `event_id`
and `ts`. Where several rows are equally good, such as two highest bids, every language says which
of them counts.
"""

from __future__ import annotations

from millrace_lab.nexmark.queries import grouped, joined, plain, windowed
from millrace_lab.nexmark.queries.query import (
    BOTH,
    EMITTED,
    LATEST,
    STATE,
    STATELESS,
    Query,
)

QUERIES = tuple(
    sorted(
        (*plain.QUERIES, *joined.QUERIES, *windowed.QUERIES, *grouped.QUERIES),
        key=lambda query: int(query.name[1:]),
    )
)
BY_NAME = {query.name: query for query in QUERIES}

__all__ = ["BOTH", "BY_NAME", "EMITTED", "LATEST", "QUERIES", "STATE", "STATELESS", "Query"]

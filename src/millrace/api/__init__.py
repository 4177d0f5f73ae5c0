"""What a program uses: streams, queries, readers."""

from millrace.api.query import Query
from millrace.api.stream import KeyedStream, Sinked, Stream, stream

__all__ = ["KeyedStream", "Query", "Sinked", "Stream", "stream"]

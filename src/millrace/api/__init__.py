"""What a program uses: streams, queries, readers."""

from millrace.api.query import Query
from millrace.api.reader import Reader, open_location
from millrace.api.stream import KeyedStream, Sinked, Stream, stream

__all__ = ["KeyedStream", "Query", "Reader", "Sinked", "Stream", "open_location", "stream"]

"""What a program uses: streams, queries, readers."""

from millrace.api.query import Query
from millrace.api.stream import KeyedStream, Stream, StreamWriter, stream

__all__ = ["KeyedStream", "Query", "Stream", "StreamWriter", "stream"]

"""What a program uses: streams, queries, readers."""

from millrace.api.query import Query
from millrace.api.stream import KeyedStream, Stream, stream
from millrace.api.writer import StreamWriter

__all__ = ["KeyedStream", "Query", "Stream", "StreamWriter", "stream"]

"""What a program uses: streams, queries, readers."""

from millrace.api.keyed import KeyedStream
from millrace.api.query import Query
from millrace.api.stream import Stream, stream
from millrace.api.writer import StreamWriter

__all__ = ["KeyedStream", "Query", "Stream", "StreamWriter", "stream"]

"""Open state: read, query and look up a location's state from outside, without Spark."""

from millrace.reading.reader import Reader, open_location

__all__ = ["Reader", "open_location"]

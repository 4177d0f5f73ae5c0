"""Look-ups in live state: a warm replica that follows the log, over HTTP and Arrow Flight."""

from millrace.serve.lookups import Answer, Lookups

__all__ = ["Answer", "Lookups"]

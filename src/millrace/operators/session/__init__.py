"""Sessions of event time: aggregates per key and session, which grow and merge as rows come."""

"""Millrace on Spark: session, exchange, shards, epochs, sinks. Spark is the engine."""

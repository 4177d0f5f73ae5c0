"""Keyed aggregates: one row of state per key, partial results computed by the JVM."""

"""Spark's own processors: classes written for `transformWithState`, run unchanged."""

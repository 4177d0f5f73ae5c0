"""Spark's own processors: classes written for `transformWithState`, run as they are."""

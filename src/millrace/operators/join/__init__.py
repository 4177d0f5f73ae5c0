"""Joins of two streams by key and by an interval of event time."""

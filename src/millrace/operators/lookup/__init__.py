"""Rows of a stream with the newest row per key of another, at once."""

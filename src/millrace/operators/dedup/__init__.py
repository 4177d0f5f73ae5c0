"""Deduplication: the first row of every key goes on, and the key is remembered for a time."""

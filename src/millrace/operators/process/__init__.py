"""Processors: a user's own logic per key, with typed state and timers."""

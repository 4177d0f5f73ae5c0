"""Patterns over the rows of a key in order of event time: an automaton, and its matches."""

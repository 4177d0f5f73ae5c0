"""Sketches in the binary formats of Apache DataSketches, a whole column at a time."""

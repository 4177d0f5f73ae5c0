"""The layouts of aggregates, by family."""

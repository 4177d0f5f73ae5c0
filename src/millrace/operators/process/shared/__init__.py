"""State that does not belong to a key: broadcast state and task state."""

"""State tables: mapped base + in-memory index of the delta, and replicas that follow the log."""

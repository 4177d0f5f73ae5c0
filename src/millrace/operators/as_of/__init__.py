"""Each row of a stream with the newest row of another at its event time."""

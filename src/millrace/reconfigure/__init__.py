"""Change who owns which key groups while the stream runs. No Spark inside."""

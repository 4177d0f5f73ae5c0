"""Changing who owns which key groups while the stream goes on. No Spark inside."""

"""Structured Streaming programs as they are: their plans, writers and queries on Millrace."""

"""Spark's logical plans, described without Spark, and the rules that cut them at stateful nodes."""

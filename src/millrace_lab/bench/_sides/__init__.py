"""The sides of a comparison, each in a process of its own: Millrace, Spark, and the ceiling."""

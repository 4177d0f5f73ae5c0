"""Benchmarks, the soak test, the demonstration and fault injection: beside the product, not in it.

Nothing in `millrace` imports this package. In the development environment its commands join the
`millrace` command line through entry points.
"""

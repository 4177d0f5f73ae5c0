"""Autoscaling in simulation: the policies of the product against loads that a seed determines.

`python -m millrace_lab.autoscaling` compares them with a fixed number of shards and with an oracle.
"""

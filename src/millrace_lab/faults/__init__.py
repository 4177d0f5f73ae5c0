"""Fault injection: stores that fail or are slow, processes that die at named points."""

from millrace import hooks

HOOKS = {hooks.VARIABLE: "millrace_lab.faults.hooks"}
"""Goes beside the variables of the faults, into the environment of the driver and executors."""

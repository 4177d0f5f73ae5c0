"""The demonstration: a stream of made-up sensor readings, watched live, then checked."""

from millrace_lab.demo.command import demo

__all__ = ["demo"]

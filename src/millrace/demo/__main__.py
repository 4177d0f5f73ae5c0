"""`python -m millrace.demo`."""

from millrace.demo.command import demo

demo()

"""Engines that run in Python environments of their own; see `millrace_lab.bench._environments`.

The package `engines` in here is started by another environment's interpreter, with this folder on
its path and nothing else of Millrace: it must run where neither Millrace nor its dependencies are.
"""

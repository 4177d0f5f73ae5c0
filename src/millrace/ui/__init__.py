"""The live page: a query's epochs, key groups, moves and failures, read from its location."""

from millrace.ui.server import Page, open_page

__all__ = ["Page", "open_page"]

"""Sphinx: the pages in this folder as a site. `make docs` builds it, warnings as errors."""

from __future__ import annotations

from pathlib import Path

_version: dict[str, str] = {}
exec((Path(__file__).parent.parent / "src/millrace/_version.py").read_text(), _version)

project = "Millrace"
author = "the Millrace authors"
release = version = _version["__version__"]
html_title = f"Millrace {release}"

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
# The single decisions are reached from their index, and would crowd the navigation.
suppress_warnings = ["toc.not_included"]
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

html_theme = "alabaster"
html_theme_options = {
    "description": "Elastic, fast, queryable state for streams on PySpark",
    "fixed_sidebar": True,
    "page_width": "1120px",
    "sidebar_width": "230px",
    "font_family": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif",
    "head_font_family": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif",
    "font_size": "16px",
    "link": "#2a72c8",
    "show_powered_by": False,
}
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False

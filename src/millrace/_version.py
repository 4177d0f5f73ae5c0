"""The one place that states Millrace's version; the build reads it from here."""

__version__ = "0.1.0"

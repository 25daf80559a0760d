"""The one place that holds the version."""

__all__ = ["__version__"]

__version__ = "0.2.0"

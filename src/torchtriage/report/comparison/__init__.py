"""A comparison of two runs for every reader: plain functions from ``Comparison`` to text."""

__all__: list[str] = []

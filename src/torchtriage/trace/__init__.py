"""Bytes to columns, and the structure in them."""

from torchtriage.trace.columns import Lane, Trace
from torchtriage.trace.read import read_trace
from torchtriage.trace.schema import Kind

__all__ = ["Kind", "Lane", "Trace", "read_trace"]

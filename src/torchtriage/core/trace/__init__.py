"""Bytes to columns, and the structure in them."""

from torchtriage.core.trace.columns import Lane, Trace
from torchtriage.core.trace.read import read_trace
from torchtriage.core.trace.schema import Kind

__all__ = ["Kind", "Lane", "Trace", "read_trace"]

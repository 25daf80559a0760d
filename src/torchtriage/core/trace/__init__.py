"""Bytes to columns, and the structure in them."""

from torchtriage.core.trace.columns import Lane, Trace
from torchtriage.core.trace.read import read_trace
from torchtriage.core.trace.schema import HOST_KINDS, Kind

__all__ = ["HOST_KINDS", "Kind", "Lane", "Trace", "read_trace"]

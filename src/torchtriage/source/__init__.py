"""Python source on disk: files, functions by first line, call sites and their order.

Reads with ``ast`` alone: nothing is imported or run.
"""

from torchtriage.source.align import Alignment, Called, align
from torchtriage.source.files import SourceFile, Sources, parse, read
from torchtriage.source.functions import Function, find_functions
from torchtriage.source.sites import Flow, Site, flow_of

__all__ = [
    "Alignment",
    "Called",
    "Flow",
    "Function",
    "Site",
    "SourceFile",
    "Sources",
    "align",
    "find_functions",
    "flow_of",
    "parse",
    "read",
]

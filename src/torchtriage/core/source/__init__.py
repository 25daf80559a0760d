"""Python source on disk: files, functions by first line, call sites and their order.

Reads with ``ast`` alone: nothing is imported or run.
"""

from torchtriage.core.source.align import Alignment, Called, align
from torchtriage.core.source.call_sites import flow_of
from torchtriage.core.source.files import SourceFile, Sources, parse, read
from torchtriage.core.source.flow import Flow, Site
from torchtriage.core.source.functions import Function, find_functions

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

"""What memory verdicts are called, one file each: a page like a pattern's, and its default fix.

The judges of the folder above make the findings; :func:`catalogue` finds the pages.
"""

from torchtriage.memory.findings.base import MemoryCode, MemoryEntry, catalogue

__all__ = ["MemoryCode", "MemoryEntry", "catalogue"]

"""The anti-patterns, one file each; :func:`catalogue` finds them by walking the subfolders."""

from torchtriage.diagnose.patterns.base import Claim, Edit, Pattern, PatternEntry, catalogue, lookup

__all__ = ["Claim", "Edit", "Pattern", "PatternEntry", "catalogue", "lookup"]

"""The anti-patterns, one file each; :func:`catalogue` finds them by walking the subfolders."""

from torchtriage.patterns.base import Claim, Edit, Entry, Pattern, catalogue, lookup

__all__ = ["Claim", "Edit", "Entry", "Pattern", "catalogue", "lookup"]

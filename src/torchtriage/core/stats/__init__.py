"""Statistics on plain arrays, each with its assumption, its source and a test of its error rate."""

from torchtriage.core.stats.difference import Interval, difference_of_means

__all__ = ["Interval", "difference_of_means"]

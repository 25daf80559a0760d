"""Python source on disk: files, functions by first line, call sites and their order.

Reads with ``ast`` alone: nothing is imported or run.
"""

"""Leaks of a running program: growth, holders, and the watch."""

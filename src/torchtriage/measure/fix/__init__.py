"""Fixes that prove themselves: edits of the source for findings, each on trial against the program as it was."""

"""A second opinion on suspicious windows: evidence with ids, and who judges it."""

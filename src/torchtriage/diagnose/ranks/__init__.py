"""Ranks of one job: matched, compared, and judged together."""

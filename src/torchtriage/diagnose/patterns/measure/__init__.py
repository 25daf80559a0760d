"""Whether the measurement itself can be trusted."""

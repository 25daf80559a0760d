"""Work around the optimizer that its settings add."""

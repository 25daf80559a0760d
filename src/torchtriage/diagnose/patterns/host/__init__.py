"""Python on the launching thread."""

"""The benchmark's part of real accelerators: an index of what others published, its labels, and how to get it."""

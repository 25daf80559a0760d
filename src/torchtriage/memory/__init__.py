"""Memory: snapshots of the allocator read as columns, and what they say about a program."""

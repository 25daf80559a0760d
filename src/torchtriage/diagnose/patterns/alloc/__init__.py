"""The caching allocator."""

"""Memory snapshots: reading, the peak by line, leaks, fragmentation."""

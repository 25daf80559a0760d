"""Online detectors: constant memory, no clock, no I/O; each value is judged by those before it."""

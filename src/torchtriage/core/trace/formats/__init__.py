"""Recordings of other profilers, each read into the columns of a :class:`~torchtriage.core.trace.columns.Trace`."""

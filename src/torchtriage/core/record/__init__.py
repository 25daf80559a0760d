"""Recording: PyTorch's profiler with the options the patterns need.

torch is imported where recording starts, never when these modules are imported.
"""

"""Reads PyTorch profiler traces and says what costs time, where, and what to change."""

"""Trains the detector on the benchmark, and what it is measured against."""

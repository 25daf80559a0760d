"""Benchmarks, the regression gate and fixes on trial."""

"""Collected records of requests, analysed after the fact."""

"""The regression gate: samples recorded and stored, candidates checked against a baseline."""

"""Monitoring, detection, alerts, degradation, experiments and rollouts."""

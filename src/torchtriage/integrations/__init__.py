"""Trainers, notebooks and pytest."""

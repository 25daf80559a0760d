"""Modes and settings that are wrong by themselves."""

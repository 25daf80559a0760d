"""Foundations: findings, units and errors, and the packages every wing builds on."""

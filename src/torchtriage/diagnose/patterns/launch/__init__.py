"""Hosts that cannot feed the device."""

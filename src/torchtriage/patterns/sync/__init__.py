"""Host-device synchronisation."""

"""Programs with known faults, planned, recorded and labelled."""

"""Many devices in one picture: a reader of their stream, one against its peers, one version across all."""

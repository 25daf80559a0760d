"""Commands of the wing ``measure``."""

"""Commands of the wing ``learn``."""

"""Commands of the wing ``memory``."""

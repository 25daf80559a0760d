"""Commands of the wing ``compile``."""

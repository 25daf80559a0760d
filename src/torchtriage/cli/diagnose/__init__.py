"""Commands of the wing ``diagnose``."""

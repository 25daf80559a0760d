"""Commands of the wing ``operate``."""

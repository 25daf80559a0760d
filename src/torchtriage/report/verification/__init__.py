"""A fix on trial: ``terminal`` and ``json_report``."""

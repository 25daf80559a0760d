"""Commands that ``torchtriage dataset`` and ``torchtriage learn`` load from here."""

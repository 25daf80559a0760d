"""Commands that ``torchtriage benchmark dataset`` and ``torchtriage benchmark learn`` load from here."""

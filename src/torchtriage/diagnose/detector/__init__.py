"""A learned second opinion: how suspicious the windows of a trace are. Needs numpy only."""

"""A model in a fresh process: the session, its client, and what both exchange."""

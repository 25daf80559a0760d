"""What experiments and rollouts say, for every reader: terminal, JSON, Markdown and a page."""

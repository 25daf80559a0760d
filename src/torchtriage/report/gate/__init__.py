"""What a gate says, for every reader: terminal, JSON, Markdown, annotations and a page."""

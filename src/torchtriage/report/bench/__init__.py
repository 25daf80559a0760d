"""A benchmark's result on the terminal, as JSON, as Markdown and as a page."""

"""A compile log's result on the terminal, as JSON, as Markdown and as a page."""

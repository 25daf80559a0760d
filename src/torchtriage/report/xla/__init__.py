"""Models on PyTorch/XLA, or dumps of programs: on the terminal, as JSON, Markdown and a page."""

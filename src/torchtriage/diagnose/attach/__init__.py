"""A job that runs: captures of it through what it offers, and what it waits for where nothing moves."""

"""The command line: one module per command; only this package prints and exits."""

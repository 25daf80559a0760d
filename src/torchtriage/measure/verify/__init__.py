"""Two versions of a script, run in turns and compared."""

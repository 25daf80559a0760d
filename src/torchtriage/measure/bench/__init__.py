"""Which way to run a model: eager and compiled variants in processes of their own, in turns."""

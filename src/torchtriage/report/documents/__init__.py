"""Each result as a ``Document``: one file per result, the same blocks for every format."""

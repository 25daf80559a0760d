"""Whether two answers agree, and within which error."""

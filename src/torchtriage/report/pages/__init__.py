"""Pages that draw with a script of their own: the data that their scripts are given."""

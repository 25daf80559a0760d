"""From a trace or a program to ranked findings."""

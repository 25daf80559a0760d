"""torch.compile: its logs read without torch, and what they say about a program."""

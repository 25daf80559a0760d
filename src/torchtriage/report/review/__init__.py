"""The review of suspicious windows, on the terminal and as JSON."""

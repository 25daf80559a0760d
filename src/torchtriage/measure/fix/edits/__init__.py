"""One file per edit. ``CODES`` : the findings it may mend; ``propose(site)`` : the changes it has for one place."""

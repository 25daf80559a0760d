"""One file per edit. ``CODES`` : the findings it may mend; ``propose(site)`` : the changes it has for one place.

``CODES_ELSEWHERE`` : those that may be mended in another file than the finding names. ``LAST`` : others are tried
first, as this one makes the start of a run longer. A proposal without edits is none; ``@first_only`` : of several
places that could be changed, the first is.
"""

"""Results for every reader: plain functions from a result to text, bytes or a page.

``documents`` turn results into ``blocks``, which ``terminal``, ``markdown`` and ``page`` draw. ``json_report``
and ``formats`` write and read JSON, ``sarif`` writes it for code scanning; ``pages`` draw with scripts of their own.
``words`` : how a cost, a place and a piece of evidence read, wherever they are shown.

Nothing here opens a trace or prints, so a result file of last year renders again.
"""

__all__: list[str] = []

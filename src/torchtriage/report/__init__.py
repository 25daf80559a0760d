"""The same findings for every reader: plain functions from ``Result`` to text, bytes or a page.

``terminal``
    Text for people (needs rich, imported there alone).
``json_report``
    The versioned document every other tool reads, and back.
``markdown``
    A comment for a pull request.
``sarif``
    SARIF 2.1.0 for code scanning.
``html_page``
    One self-contained page.
``words``
    How a cost, a place and a piece of evidence read, wherever they are shown.

Nothing here opens a trace or prints, so a result file of last year renders again.
"""

__all__: list[str] = []

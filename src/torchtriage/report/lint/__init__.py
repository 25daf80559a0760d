"""What lint found, for every reader: ``terminal``, ``markdown`` and ``json_report``.

SARIF is ``report.sarif``, the same as for traces.
"""

__all__: list[str] = []

"""Make a large export of Nsight Systems from a small one: ``python benchmarks/make_large_database.py IN OUT TIMES``.

Rows come again a second later each time, with correlations and ids of operators of their own.
"""

from __future__ import annotations

import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

WORK = ("KERNEL", "MEMCPY", "MEMSET", "RUNTIME", "SYNCHRONIZATION", "OVERHEAD")
TABLES = (*(f"CUPTI_ACTIVITY_KIND_{kind}" for kind in WORK), "NVTX_EVENTS")
SHIFTS = {
    "start": "start + {0} * 1000000000",
    "end": "end + {0} * 1000000000",
    "correlationId": "correlationId + {0} * 2000000",
    "text": "replace(text, 'op_id = ', 'op_id = {0}')",
}


def main(source: Path, target: Path, times: int) -> None:
    """Write ``target``, with ``times`` of the rows of ``source``."""
    shutil.copyfile(source, target)
    with closing(sqlite3.connect(target)) as connection:
        connection.execute("PRAGMA journal_mode=OFF")
        for table in TABLES:
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            connection.execute(f"CREATE TEMP TABLE once AS SELECT * FROM {table}")
            for number in range(1, times):
                made = ", ".join(SHIFTS.get(column, column).format(number) for column in columns)
                connection.execute(f"INSERT INTO {table} SELECT {made} FROM once")
            connection.execute("DROP TABLE once")
        connection.commit()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))

"""Flight-recorder dumps of NCCL jobs, as torch 2.10's FlightRecorder::dump writes them."""

from __future__ import annotations

import pickle
from typing import Any


def entry(
    number: int,
    op: str = "all_reduce",
    *,
    group: tuple[str, str] = ("0", "default_pg"),
    state: str = "completed",
    sizes: tuple[int, ...] = (1024,),
    dtype: str = "Float",
    record: int | None = None,
    is_p2p: bool = False,
    line: int = 10,
) -> dict[str, Any]:
    return {
        "frames": [
            {"name": op, "filename": "/env/site-packages/torch/distributed/distributed_c10d.py", "line": 2900},
            {"name": "train", "filename": "/job/train.py", "line": line},
        ],
        "record_id": number - 1 if record is None else record,
        "pg_id": int(group[0]),
        "process_group": group,
        "collective_seq_id": 0 if is_p2p else number,
        "p2p_seq_id": number if is_p2p else 0,
        "op_id": number,
        "profiling_name": f"nccl:{op}",
        "time_created_ns": 1_700_000_000_000_000_000 + number,
        "input_sizes": [list(sizes)],
        "input_dtypes": [dtype],
        "output_sizes": [list(sizes)],
        "output_dtypes": [dtype],
        "state": state,
        "time_discovered_started_ns": None if state == "scheduled" else 1,
        "time_discovered_completed_ns": 2 if state == "completed" else None,
        "retired": state == "completed",
        "timeout_ms": 600_000,
        "is_p2p": is_p2p,
    }


def dump(entries: list[dict[str, Any]], groups: dict[str, list[int]]) -> bytes:
    """``groups`` : the global ranks of each process group."""
    document = {
        "version": "2.10",
        "pg_config": {name: {"name": name, "desc": f"pg{name}", "ranks": str(ranks)} for name, ranks in groups.items()},
        "pg_status": {},
        "entries": entries,
    }
    return pickle.dumps(document, protocol=2)

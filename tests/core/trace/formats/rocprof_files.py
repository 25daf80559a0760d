"""Writes what rocprofv3 writes, from rows: modelled on ``generateJSON.cpp`` and ``generateCSV.cpp`` of ROCm's
rocprofiler-sdk (ROCm/rocm-systems 1b1610f, ``projects/rocprofiler-sdk/source/lib/output``).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DOMAINS: dict[str, list[str]] = {
    "NONE": [],
    "HIP_RUNTIME_API": ["hipLaunchKernel", "hipMemcpyAsync", "hipDeviceSynchronize"],
    "MARKER_CORE_RANGE_API": ["roctxMarkA", "roctxThreadRangeA", "roctxProcessRangeA", "roctxGetThreadId"],
    "MARKER_CONTROL_API": ["roctxProfilerPause", "roctxProfilerResume"],
    "MEMORY_COPY": [
        "MEMORY_COPY_NONE",
        "MEMORY_COPY_HOST_TO_HOST",
        *(f"MEMORY_COPY_{way}" for way in ("HOST_TO_DEVICE", "DEVICE_TO_HOST", "DEVICE_TO_DEVICE")),
    ],
    "KERNEL_DISPATCH": ["KERNEL_DISPATCH_NONE", "KERNEL_DISPATCH_ENQUEUE", "KERNEL_DISPATCH_COMPLETE"],
    "RCCL_API": ["ncclAllReduce"],
    "MEMORY_ALLOCATION": ["MEMORY_ALLOCATION_NONE", "MEMORY_ALLOCATION_ALLOCATE"],
}


def columns_of(names: str) -> list[str]:
    return names.split()


KINDS = list(DOMAINS)
CALLS = {"hip_api": "HIP", "marker_api": "MARKER", "rccl_api": "RCCL"}
KERNEL_COLUMNS = columns_of(
    "Kind Agent_Id Queue_Id Stream_Id Thread_Id Dispatch_Id Kernel_Id Kernel_Name Correlation_Id Start_Timestamp"
    " End_Timestamp LDS_Block_Size Scratch_Size VGPR_Count Accum_VGPR_Count SGPR_Count Workgroup_Size_X"
    " Workgroup_Size_Y Workgroup_Size_Z Grid_Size_X Grid_Size_Y Grid_Size_Z"
)
COPY_COLUMNS = columns_of(
    "Kind Direction Stream_Id Source_Agent_Id Destination_Agent_Id Correlation_Id Start_Timestamp End_Timestamp"
)
CALL_COLUMNS = columns_of("Domain Function Process_Id Thread_Id Correlation_Id Start_Timestamp End_Timestamp")
ALLOCATION_COLUMNS = columns_of(
    "Kind Operation Agent_Id Allocation_Size Address Correlation_Id Start_Timestamp End_Timestamp"
)


@dataclass
class Run:
    """What one process did: agents by node (CPUs first), and rows."""

    pid: int = 4242
    agents: list[tuple[int, str, str]] = field(
        default_factory=lambda: [
            (1, "AMD EPYC", "AMD EPYC"),
            (1, "AMD EPYC", "AMD EPYC"),
            (2, "gfx942", "AMD Instinct MI300X"),
            (2, "gfx942", "AMD Instinct MI300X"),
        ]
    )
    # name, agent, queue, stream, correlation, start, end, grid in work items, group
    kernels: list[tuple[str, int, int, int, int, int, int, tuple[int, int, int], tuple[int, int, int]]] = field(
        default_factory=list
    )
    # operation, source, destination, stream, correlation, start, end, bytes
    copies: list[tuple[str, int, int, int, int, int, int, int]] = field(default_factory=list)
    # domain, operation, thread, correlation, start, end, text of a range
    calls: list[tuple[str, str, int, int, int, int, str]] = field(default_factory=list)
    # agent, bytes, correlation, start, end
    allocations: list[tuple[int, int, int, int, int]] = field(default_factory=list)

    def symbols(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(dict.fromkeys(kernel[0] for kernel in self.kernels), 1)}


def handle(agent: int) -> dict[str, int]:
    return {"handle": 37_944 + agent}


def record(domain: str, operation: str, thread: int, correlation: int, start: int, end: int) -> dict[str, Any]:
    return {
        "size": 64,
        "kind": KINDS.index(domain),
        "operation": DOMAINS[domain].index(operation),
        "correlation_id": {"internal": correlation, "external": 0, "ancestor": 0},
        "start_timestamp": start,
        "end_timestamp": end,
        "thread_id": thread,
    }


def axes(size: tuple[int, int, int]) -> dict[str, int]:
    return dict(zip("xyz", size, strict=True))


def process_of(run: Run) -> dict[str, Any]:
    """Return the object that rocprofv3 writes for a process."""
    symbols = run.symbols()
    thread = run.pid
    return {
        "metadata": {"node": {"id": 0, "hostname": "host"}, "pid": run.pid, "command": ["python3", "train.py"]},
        "agents": [
            {
                "size": 312,
                "id": handle(node),
                "type": kind,
                "node_id": node,
                "logical_node_id": node,
                "logical_node_type_id": sum(other[0] == kind for other in run.agents[:node]),
                "name": name,
                "product_name": product,
            }
            for node, (kind, name, product) in enumerate(run.agents)
        ],
        "counters": [],
        "strings": {
            "callback_records": [],
            "buffer_records": [{"kind": kind, "operations": names} for kind, names in DOMAINS.items()],
            "marker_api": [{"key": call[3], "value": call[6]} for call in run.calls if call[6]],
            "correlation_id": {"external": []},
        },
        "code_objects": [],
        "kernel_symbols": [
            {"kernel_id": number, "kernel_name": f"{name}.kd", "formatted_kernel_name": name}
            for name, number in symbols.items()
        ],
        "host_functions": [],
        "callback_records": {"counter_collection": []},
        "buffer_records": {
            "kernel_dispatch": [
                {
                    **record("KERNEL_DISPATCH", "KERNEL_DISPATCH_COMPLETE", thread, correlation, start, end),
                    "dispatch_info": {
                        "size": 72,
                        "agent_id": handle(agent),
                        "queue_id": {"handle": queue},
                        "kernel_id": symbols[name],
                        "dispatch_id": number,
                        "workgroup_size": axes(group),
                        "grid_size": axes(grid),
                    },
                    "stream_id": {"handle": stream},
                }
                for number, (name, agent, queue, stream, correlation, start, end, grid, group) in enumerate(
                    run.kernels, 1
                )
            ],
            **{
                key: [
                    {**record(*call[:6]), "args": {"stream": "0x7f00"}, "retval": 0}
                    for call in run.calls
                    if call[0].startswith(domain)
                ]
                for key, domain in CALLS.items()
            },
            "memory_copy": [
                {
                    **record("MEMORY_COPY", operation, thread, correlation, start, end),
                    "src_agent_id": handle(source),
                    "dst_agent_id": handle(target),
                    "bytes": n_bytes,
                    "stream_id": {"handle": stream},
                }
                for operation, source, target, stream, correlation, start, end, n_bytes in run.copies
            ],
            "memory_allocation": [
                {
                    **record("MEMORY_ALLOCATION", "MEMORY_ALLOCATION_ALLOCATE", thread, correlation, start, end),
                    "agent_id": handle(agent),
                    "allocation_size": n_bytes,
                }
                for agent, n_bytes, correlation, start, end in run.allocations
            ],
        },
    }


def json_of(*runs: Run) -> str:
    """Return the file of these processes, in the layout of cereal's archive."""
    return json.dumps({"rocprofiler-sdk-tool": [process_of(run) for run in runs]}, indent=0)


def table(columns: list[str], rows: list[list[Any]]) -> str:
    """Return a CSV as rocprofv3 writes it: texts in quotes, which nothing escapes."""
    shown = [",".join(f'"{value}"' if isinstance(value, str) else str(value) for value in row) for row in rows]
    return "\n".join([",".join(f'"{name}"' for name in columns), *shown, ""])


def csv_of(run: Run) -> dict[str, str]:
    """Return the tables of a process by the names that follow the prefix; empty ones are not written."""
    symbols = run.symbols()
    thread = run.pid
    tables = {
        "agent_info.csv": table(
            ["Node_Id", "Logical_Node_Id", "Agent_Type", "Name", "Vendor_Name", "Product_Name", "Model_Name"],
            [
                [node, node, "GPU" if kind == 2 else "CPU", name, "AMD", product, ""]
                for node, (kind, name, product) in enumerate(run.agents)
            ],
        )
    }
    kernels = [
        [
            *("KERNEL_DISPATCH", f"Agent {agent}", queue, stream, thread, number, symbols[name], name, correlation),
            *(start, end, 0, 0, 16, 0, 32, *group, *grid),
        ]
        for number, (name, agent, queue, stream, correlation, start, end, grid, group) in enumerate(run.kernels, 1)
    ]
    copies = [
        ["MEMORY_COPY", operation, stream, f"Agent {source}", f"Agent {target}", correlation, start, end]
        for operation, source, target, stream, correlation, start, end, _ in run.copies
    ]
    allocations = [
        [
            *("MEMORY_ALLOCATION", "MEMORY_ALLOCATION_ALLOCATE", f"Agent {agent}", n_bytes, "0x00007ffb", correlation),
            *(start, end),
        ]
        for agent, n_bytes, correlation, start, end in run.allocations
    ]
    for name, columns, rows in (
        ("kernel_trace.csv", KERNEL_COLUMNS, kernels),
        ("memory_copy_trace.csv", COPY_COLUMNS, copies),
        ("memory_allocation_trace.csv", ALLOCATION_COLUMNS, allocations),
        *(
            (
                f"{key}_trace.csv",
                CALL_COLUMNS,
                [
                    [domain, text or operation, run.pid, tid, correlation, start, end]
                    for domain, operation, tid, correlation, start, end, text in run.calls
                    if domain.startswith(kind)
                ],
            )
            for key, kind in CALLS.items()
        ),
    ):
        if rows:
            tables[name] = table(columns, rows)
    return tables


def write_csv(folder: Path, run: Run, prefix: str = "") -> dict[str, Path]:
    """Write the tables of a process into a folder; return their paths by what follows the prefix."""
    folder.mkdir(exist_ok=True, parents=True)
    paths = {}
    for name, text in csv_of(run).items():
        paths[name] = folder / f"{prefix or f'{run.pid}_'}{name}"
        paths[name].write_text(text)
    return paths

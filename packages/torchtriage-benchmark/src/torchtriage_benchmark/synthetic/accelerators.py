"""The classes of accelerators that synthetic timelines run on: data-sheet rates and host costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Accelerator:
    """One class of device and the host it usually stands in.

    Rates are dense peaks in TFLOP/s and TB/s; what kernels reach of them is drawn for each item.
    """

    name: str
    board: str
    capability: tuple[int, int]
    n_sms: int
    memory_bytes: int
    float_tflops: float
    tf32_tflops: float
    """0 where the device has none."""
    half_tflops: float
    memory_tbps: float
    pinned_gbps: float
    pageable_gbps: tuple[float, float]
    """What staging through the driver's buffer reaches, worst and best."""
    launch_us: float
    """Median time of a launch call under the profiler; measured 3.2-9.9 in public recordings."""
    latency_us: float
    """From a launch call's begin to its kernel's on an idle stream."""
    floor_us: float
    """The shortest kernel."""
    threads_per_sm: int
    shared_per_sm: int
    shared_optin: int

    def tflops(self, rate: str) -> float:
        """Return the peak of a rate: "float", "tf32" or "half"."""
        return {"float": self.float_tflops, "tf32": self.tf32_tflops, "half": self.half_tflops}[rate]

    @property
    def precisions(self) -> tuple[str, ...]:
        """What a healthy program computes in, as training does first: tensor cores, where they take its numbers."""
        if self.tf32_tflops:
            return ("tf32", "bf16")
        return ("float", "fp16") if self.float_tflops > _USABLE_TFLOPS else ("fp16",)

    @property
    def properties(self) -> dict[str, Any]:
        """The row of ``deviceProperties``."""
        return {
            "id": 0,
            "name": self.board,
            "totalGlobalMem": self.memory_bytes,
            "computeMajor": self.capability[0],
            "computeMinor": self.capability[1],
            "maxThreadsPerBlock": 1024,
            "maxThreadsPerMultiprocessor": self.threads_per_sm,
            "regsPerBlock": 65536,
            "warpSize": 32,
            "sharedMemPerBlock": 49152,
            "numSms": self.n_sms,
            "regsPerMultiprocessor": 65536,
            "sharedMemPerBlockOptin": self.shared_optin,
            "sharedMemPerMultiprocessor": self.shared_per_sm,
        }


_USABLE_TFLOPS = 10
"""In fp32; with fewer, people use half precision."""

ACCELERATORS = {
    item.name: item
    for item in (
        Accelerator(
            "A100",
            "NVIDIA A100-SXM4-40GB",
            (8, 0),
            108,
            42297524224,
            19.5,
            156,
            312,
            1.55,
            23.5,
            (4.0, 9.0),
            6.2,
            9.5,
            1.9,
            2048,
            167936,
            166912,
        ),
        Accelerator(
            "H100",
            "NVIDIA H100 80GB HBM3",
            (9, 0),
            132,
            85018279936,
            67,
            495,
            989,
            3.35,
            48.0,
            (6.0, 14.0),
            4.3,
            7.5,
            1.3,
            2048,
            233472,
            232448,
        ),
        Accelerator(
            "A10G",
            "NVIDIA A10G",
            (8, 6),
            80,
            23836033024,
            31.2,
            35,
            70,
            0.60,
            22.0,
            (4.0, 8.0),
            7.0,
            10.5,
            2.0,
            1536,
            102400,
            101376,
        ),
        Accelerator(
            "L4",
            "NVIDIA L4",
            (8, 9),
            58,
            23580639232,
            30.3,
            60,
            121,
            0.30,
            21.0,
            (4.0, 8.5),
            5.6,
            9.0,
            1.8,
            1536,
            102400,
            101376,
        ),
        Accelerator(
            "V100",
            "Tesla V100-SXM2-16GB",
            (7, 0),
            80,
            16944988160,
            15.7,
            0,
            125,
            0.90,
            12.0,
            (3.0, 7.0),
            7.0,
            10.5,
            2.0,
            2048,
            98304,
            98304,
        ),
        Accelerator(
            "T4",
            "Tesla T4",
            (7, 5),
            40,
            15828320256,
            8.1,
            0,
            65,
            0.32,
            12.0,
            (3.0, 6.0),
            7.6,
            12.0,
            2.2,
            1024,
            65536,
            65536,
        ),
    )
}

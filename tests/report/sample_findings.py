"""Hand-made findings of the sample results, and the texts and times they are made of."""

from __future__ import annotations

from torchtriage.core.finding import Cost, Example, Finding, Fix, Frame, NotChecked, Place

MS = 1_000_000
START_NS = 5_000_000_000
STEP_MS = (141.6, 48.4, 48.2, 47.9, 48.2)
OF_MS = 48.2  # median of the steady ones

# HTML, terminal control, rich markup, line breaks, right-to-left override, a C1 control, a table
# cell border, and a code fence
HOSTILE = (
    "<script>alert('x')</script>"
    "\x1b[31mred\x1b]0;title\x07 [bold]not markup[/bold] [/]"
    "\r\nnew\nline\ttab \u202egnitfel\u202c \u009b1m \x00 | `tick` ```fence``` \u2028 </style>"
)

ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"
)
ADAM = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous "
    "namespace)::FusedOptimizerTensorListMetadata<4>, at::native::(anonymous "
    "namespace)::FusedAdamMathFunctor<float, 4, (at::native::ADAM_MODE)0, false> >()"
)
GEMM = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4"


def cost(low_ms: float, high_ms: float, naive_ms: float, **other: object) -> Cost:
    """Return a cost per step, of which shares are counted."""
    fields: dict[str, object] = {
        "per": "step",
        "of_ms": OF_MS,
        "basis": "modelled",
        "method": "bubble",
        "grade": "B",
        **other,
    }
    of_ms = float(fields["of_ms"])  # type: ignore[arg-type]
    return Cost(
        low_ms=low_ms,
        high_ms=high_ms,
        share_low=round(low_ms / of_ms, 6),
        share_high=round(high_ms / of_ms, 6),
        naive_ms=naive_ms,
        **fields,  # type: ignore[arg-type]
    )


def _span(step: int, low: float, high: float) -> tuple[int, int]:
    """Return a part of the step-th step, as an interval."""
    start = START_NS + round(sum(STEP_MS[:step]) * MS)
    return start + round(low * STEP_MS[step] * MS), start + round(high * STEP_MS[step] * MS)


def _spans(low: float, high: float) -> tuple[tuple[int, int], ...]:
    return tuple(_span(step, low, high) for step in range(1, 5))


SYNC = Finding(
    code="SYN001",
    name="host-sync-scalar",
    family="sync",
    title="The host waits for the GPU to read a scalar",
    severity="high",
    certainty="certain",
    message="2 reads of a GPU scalar per step stop the host 21.4 ms; the GPU then runs dry 11.9 ms",
    place=Place(
        steps=(11, 12, 13, 14),
        intervals_ns=_spans(0.40, 0.62),
        lane="thread 4242 (main)",
        ops=("aten::item", "aten::_local_scalar_dense", "cudaStreamSynchronize"),
        frame=Frame("train.py", 31, "train_step"),
        stack=(Frame("train.py", 74, "main"), Frame("train.py", 31, "train_step")),
        module="",
        examples=(Example(20_411, "cudaStreamSynchronize", _span(2, 0.40, 0.62)[0], 10_582_000, "4242", "4242"),),
    ),
    cost=cost(9.1, 11.9, 21.4, basis="measured", grade="A"),
    evidence={
        "n_reads_per_step": 2,
        "wait_ms_per_step": 21.4,
        "gpu_idle_ms_per_step": 11.9,
        "event_ids": [20_411, 20_977, 31_002, 31_568],
    },
    fix=Fix(
        text="Keep the loss on the GPU and read it every N steps.",
        code="if step % 50 == 0:\n    log(loss.item())",
        link="https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
    ),
    idle_ns=47_600_000,
    n_events=8,
    also_explains=("CPY006",),
)

PAGEABLE = Finding(
    code="CPY007",
    name="h2d-pageable",
    family="copy",
    title="Input batches are copied from pageable memory",
    severity="medium",
    certainty="certain",
    message="77.1 MB per step go to the GPU from pageable memory at 5.9 GB/s",
    place=Place(
        steps=(11, 12, 13, 14),
        intervals_ns=_spans(0.06, 0.11),
        lane="GPU 0 stream 7",
        ops=("aten::to", "aten::_to_copy", "aten::copy_", "cudaMemcpyAsync"),
        frame=Frame(
            "/home/someone/projects/a-long-project-name/src/training/loops/train.py", 27, "train_step", exact=True
        ),
        module="",
    ),
    cost=cost(2.0, 2.4, 2.4),
    evidence={"copied_bytes_per_step": 77_070_336, "bandwidth_gb_per_s": 5.9, "n_copies": 8},
    fix=Fix(
        text="Pin the loader's memory and copy without blocking.",
        code="DataLoader(..., pin_memory=True)\nbatch = batch.to(device, non_blocking=True)",
    ),
    n_events=8,
)

OPTIMIZER = Finding(
    code="LCH016",
    name="optimizer-per-tensor",
    family="launch",
    title="The optimizer launches kernels tensor by tensor",
    severity="medium",
    certainty="likely",
    message="Adam.step launches 1,288 kernels of 6.1 µs for 161 parameters in each step",
    place=Place(
        steps=(11, 12, 13, 14),
        intervals_ns=_spans(0.66, 0.91),
        lane="thread 4242 (main)",
        ops=("Optimizer.step#Adam.step",),
        module="nn.Module: ResNet_0",
    ),
    cost=cost(1.4, 6.3, 12.0, grade="B"),
    evidence={"kernels_per_step": 1288, "mean_kernel_us": 6.1, "parameters": 161},
    fix=Fix(text="Use the fused implementation.", code="Adam(params, fused=True)"),
    idle_ns=5_600_000,
    n_events=5152,
    also_explains=("LCH014", "LCH015"),
)

FP32 = Finding(
    code="KRN022",
    name="matmul-fp32",
    family="kernel",
    title="Matrix products run in full float32",
    severity="low",
    certainty="hint",
    message="960 float32 GEMM kernels hold 24.6 ms of each step on a GPU with tensor cores",
    place=Place(
        steps=(11, 12, 13, 14),
        intervals_ns=_spans(0.12, 0.45),
        lane="GPU 0 stream 7",
        ops=("aten::linear", "aten::addmm"),
    ),
    cost=cost(0.0, 15.1, 24.6, basis="bounded", grade="C", method="tf32 peak ratio"),
    evidence={"share_of_kernel_time": 0.512, "n_gemm": 960, "top_kernel": GEMM},
    fix=Fix(text="Allow TF32, or train under autocast.", code='torch.set_float32_matmul_precision("high")'),
    n_events=960,
)

NASTY = Finding(
    code="SYN003",
    name="host-sync-explicit",
    family="sync",
    title="An explicit synchronize in every step",
    severity="note",
    certainty="hint",
    message=f"1 call of torch.cuda.synchronize per step under {HOSTILE}",
    place=Place(
        steps=(11,),
        intervals_ns=(_span(1, 0.91, 0.95),),
        lane=HOSTILE,
        ops=(HOSTILE, "cudaDeviceSynchronize"),
        frame=Frame(f"src/{HOSTILE}.py", 3, HOSTILE),
        module=HOSTILE,
        examples=(Example(9, HOSTILE, _span(1, 0.91, 0.95)[0], 1_900_000, "4242", "4242"),),
    ),
    cost=None,
    evidence={HOSTILE: HOSTILE, "n_calls": 1},
    fix=Fix(text=f"Remove {HOSTILE}", code=f"# {HOSTILE}", link="javascript:alert(1)"),
    n_events=1,
)

NOT_CHECKED = (
    NotChecked("KRN023", "matmul-misaligned", ("shapes",), "profile(record_shapes=True)"),
    NotChecked("KRN025", "attention-unfused", ("shapes",), "profile(record_shapes=True)"),
    NotChecked("MEM027", "allocator-churn", ("memory records",), "profile(profile_memory=True)"),
    NotChecked("MEM028", "empty-cache-in-loop", ("memory records",), "profile(profile_memory=True)"),
)

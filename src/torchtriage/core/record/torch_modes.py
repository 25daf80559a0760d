"""In the script's process: whether torch is doing something that the recorder must not become part of."""

from __future__ import annotations

from typing import Any


def is_watched(torch: Any, device: str) -> bool:
    """Return whether operators that run now become part of something: a trace, a mode's count, a CUDA graph."""
    modes = (getattr(torch._C, f"_len_torch_{kind}_stack", int)() for kind in ("dispatch", "function"))
    captures = device == "cuda" and torch.cuda.is_current_stream_capturing()
    return captures or torch._C._get_tracing_state() is not None or any(modes)

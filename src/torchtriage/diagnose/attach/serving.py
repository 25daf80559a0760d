"""vLLM and SGLang: ``POST /start_profile`` and ``/stop_profile``, and the traces they write.

vLLM has them where it was started with ``--profiler-config '{"profiler": "torch", "torch_profiler_dir": DIR}'``
(before 0.13: ``VLLM_TORCH_PROFILER_DIR=DIR``), and what a body may say differs between its versions: none is sent.
SGLang always has them, takes ``output_dir`` and ``num_steps``, and stops after so many by itself.
Source: vllm/entrypoints/serve/profile/api_router.py; sglang/srt/entrypoints/http_server.py, managers/io_struct.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from torchtriage.core.errors import AttachError
from torchtriage.core.units import format_count
from torchtriage.diagnose.attach.captured import Captured, traces_in, wait_for
from torchtriage.diagnose.attach.web import Address, Reply, ask

PROBE_S = 5.0
START_S = 60.0
"""A first start of Kineto on all workers takes tens of seconds."""
_HOW = {
    "vLLM": 'start vLLM with --profiler-config \'{"profiler": "torch", "torch_profiler_dir": "DIR"}\''
    " (older ones with VLLM_TORCH_PROFILER_DIR=DIR)",
    "SGLang": "sglang.launch_server has it; a router in front of it does not: attach to the server itself",
}


def which(address: Address) -> str:
    """Return what serves there, ``vLLM`` or ``SGLang``, empty for something else.

    Raises AttachError: nothing answers.
    """
    for path in ("/model_info", "/get_model_info"):
        reply = ask(address, "GET", path, timeout_s=PROBE_S)
        if reply.status in (401, 403):
            raise AttachError(
                f"it asks for a token (HTTP {reply.status})", where=str(address), hint="export TORCHTRIAGE_TOKEN=..."
            )
        found = reply.json() if reply.status == 200 else None
        if isinstance(found, dict) and "model_path" in found:
            return "SGLang"
    reply = ask(address, "GET", "/version", timeout_s=PROBE_S)
    found = reply.json() if reply.status == 200 else None
    return "vLLM" if isinstance(found, dict) and "version" in found else ""


def capture(
    address: Address,
    engine: str,
    folder: Path,
    *,
    seconds: float,
    steps: int | None,
    timeout_s: float,
    sleep: Callable[[float], None] = time.sleep,
) -> Captured:
    """Have a server profile itself, for so long or for so many steps, and return the traces it wrote.

    Raises AttachError: it cannot, or no whole trace came in time. However this ends, the profile is stopped.
    """
    before = traces_in(folder)
    takes_steps = steps is not None and engine == "SGLang"
    body = None
    if engine == "SGLang":
        body = {"output_dir": str(folder.absolute()), **({"num_steps": steps} if takes_steps else {})}
    begun = time.monotonic()
    runs = True
    try:
        reply = ask(address, "POST", "/start_profile", json_body=body, timeout_s=START_S)
        runs = reply.status == 200  # else what may run is somebody else's
        _expect(reply, "start_profile", engine)
        if not takes_steps:
            sleep(seconds)
            # vLLM answers when its workers have written
            reply = ask(address, "POST", "/stop_profile", timeout_s=timeout_s)
            runs = False
            _expect(reply, "stop_profile", engine)
        files = wait_for(folder, before, timeout_s, sleep=sleep)
    except BaseException:
        if runs:
            with suppress(AttachError):
                ask(address, "POST", "/stop_profile", timeout_s=START_S)
        raise
    took_s = time.monotonic() - begun
    was_on = format_count(steps, "step") if steps is not None and takes_steps else f"{seconds:g} s"
    return Captured(files, f"{engine} profiled itself for {was_on}; {took_s:.1f} s until the traces were written")


def _expect(reply: Reply, what: str, engine: str) -> None:
    if reply.status == 200:
        return
    hint = _HOW[engine] if reply.status in (404, 405) else ""
    if reply.status in (401, 403):
        hint = "export TORCHTRIAGE_TOKEN=..."
    said = f": {reply.text}" if reply.text and not reply.text.startswith("<") else ""
    raise AttachError(f"{engine} answers HTTP {reply.status} to /{what}{said}", hint=hint)

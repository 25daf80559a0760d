"""Calls that another thread asks the main thread for."""

from __future__ import annotations

import threading
import time

import pytest

from torchtriage.core.record.main_thread import in_main_thread


@pytest.mark.torch
def test_the_compiler_leaves_alone_what_falls_into_a_compiled_call() -> None:
    from torch._dynamo.eval_frame import set_eval_frame
    from torch._dynamo.types import ConvertFrameReturn

    compiled: list[str] = []
    ran: list[int] = []

    def compiler(frame: object, *_rest: object) -> ConvertFrameReturn:
        compiled.append(frame.f_code.co_name)  # type: ignore[attr-defined]
        return ConvertFrameReturn()

    def asked() -> None:
        ran.append(1)

    asking = threading.Thread(target=in_main_thread, args=(asked,))
    before = set_eval_frame(compiler)
    try:
        asking.start()
        while not ran:
            pass
    finally:
        set_eval_frame(before)
    asking.join()
    assert not {"asked", "call"} & set(compiled)


@pytest.mark.torch
def test_nothing_begins_inside_a_backward_pass() -> None:
    import torch

    inside: list[bool] = [False]
    seen: list[bool] = []
    asking = threading.Thread(target=in_main_thread, args=(lambda: seen.append(inside[0]),))

    def hook(_gradient: torch.Tensor) -> None:
        inside[0] = True
        asking.start()
        until = time.monotonic() + 0.2
        while time.monotonic() < until:
            pass
        inside[0] = False

    x = torch.ones(2, requires_grad=True)
    x.register_hook(hook)
    (x * 2).sum().backward()
    while asking.is_alive():
        time.sleep(0.001)
    assert seen == [False]

"""Forked children of a watched process look at their own names, each from a thread."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from time import sleep

from torchtriage.core.record.stacks import callers, current_frames
from torchtriage.memory.leaks import process_growth
from torchtriage.memory.leaks.leak_candidates import GrowthTracker
from torchtriage.memory.leaks.line_watch import adding_line
from torchtriage.memory.leaks.object_growth import WALK_S, walk

LOOKS = 400
EVERY_S = 0.1


def watch_children() -> None:
    """Let children that are forked from now on look at their own names, from a thread."""
    if process_growth.children_dir is not None or not hasattr(os, "register_at_fork"):
        return
    import atexit
    import shutil
    import tempfile

    made, pid = Path(tempfile.mkdtemp(prefix="torchtriage-watch-")), os.getpid()
    process_growth.children_dir = made
    os.register_at_fork(after_in_child=_in_child)

    @atexit.register
    def _forget() -> None:
        if os.getpid() == pid:
            shutil.rmtree(made, ignore_errors=True)


def _in_child() -> None:
    with suppress(Exception):
        threading.Thread(target=_child_loop, daemon=True, name="torchtriage-watch").start()


def _child_loop() -> None:
    """Look ten times a second, ever more seldom; tell the parent what grows at every look."""
    if process_growth.children_dir is None:
        return
    main = threading.main_thread().ident
    growth, look = GrowthTracker(pauses=True), 0
    pause = EVERY_S
    for _ in range(LOOKS):
        sleep(pause)
        pause = min(pause * 1.05, 5.0)
        with suppress(Exception):
            frame = current_frames().get(main or 0)
            if frame is None:
                return
            callers(frame)  # makes the frames' objects: f_back, asked for from a thread, must not
            look += 1
            growth.follow(walk(frame, WALK_S), look)
            for track in growth.steady(look, 8):
                place = adding_line(track.held, frame)
                if place is not None:
                    process_growth.report_to_parent(track.held.name, place)
                    return
            del frame

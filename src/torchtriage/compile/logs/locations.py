"""Lines that compile logs name, and whose they are."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torchtriage.core.finding import Frame

_LIBRARY = re.compile(
    r"(?:^|[\\/])(?:site-packages|dist-packages)[\\/]|^<frozen |^<string>|^<eval"
    r"|(?:^|[\\/])lib(?:64)?[\\/]python3\.\d+[\\/]"
    r"|(?:^|[\\/])torch[\\/](?:_\w+|nn|optim|utils|distributed|autograd|fx|export)[\\/]"
    r"|(?:^|[\\/])transformers[\\/](?:models|utils|\w+\.py)"
)
_FRAME = re.compile(r'^\s*File "(?P<file>[^"\n]+)", line (?P<line>\d+), in (?P<name>\S(?:.*\S)?)\s*$')
_RESUME = re.compile(r"^torch_dynamo_resume_in_(.+)_at_(\d+)$")


def is_library(file: str) -> bool:
    """Return whether a file is of Python, of torch or of another installed package."""
    return _LIBRARY.search(file) is not None


def is_wrapper(function: tuple[str, str, int]) -> bool:
    """Return whether this is torch's wrapper around what is no plain function of the user's."""
    name, file, _ = function
    return name == "inner" and file.replace("\\", "/").endswith("_dynamo/external_utils.py")


def parse_traceback(text: str) -> tuple[Frame, ...]:
    """Return the frames of a printed traceback, innermost first."""
    frames = []
    for line in text.split("\n"):
        match = _FRAME.match(line)
        if match is not None and len(match["line"]) < 10:
            frames.append(Frame(match["file"], int(match["line"]), whole_name(match["name"]), True))
    return tuple(reversed(frames))


def user_frame(stack: Sequence[Frame]) -> Frame | None:
    """Return the innermost frame that is no library's, None where all are."""
    return next((frame for frame in stack if not is_library(frame.file)), None)


def resumed(function: str) -> int | None:
    """Return the line after which a function goes on, None where it is no rest of one."""
    match = _RESUME.match(function)
    return int(match[2][:9]) if match else None


def whole_name(function: str) -> str:
    """Return the function's name, also of its rest after a break."""
    match = _RESUME.match(function)
    return match[1] if match else function


def part_name(function: str) -> str:
    """Return a function's name for people: of its rest after a break, ``f after line 12``."""
    match = _RESUME.match(function)
    return f"{match[1]} after line {match[2]}" if match else function or "a function"

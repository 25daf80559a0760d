"""Names that may leave this machine: those of PyTorch and its libraries; a number for the rest.

What is not known to be public is private: the user's modules, functions, files, annotations,
operators and kernels become ``module#12``, where the number is the name's place in the recording.
One name of a recording always gets one number, and no number can be turned back without the
recording.
"""

from __future__ import annotations

import re
from functools import cached_property

from torchtriage.core.names import elide, short_name, visible
from torchtriage.core.trace import Kind, Trace
from torchtriage.core.trace.anonymise import library_path
from torchtriage.core.trace.frames import frame_label, parse_frame
from torchtriage.core.trace.public_names import (
    ANNOTATION,
    ANONYMOUS,
    ARGUMENT,
    BUILTIN,
    CALL,
    COPY,
    FUSED,
    GENERATED_FILE,
    KNOWN_BUILTINS,
    MODULES,
    NAMESPACES,
    OPERATOR,
    OWNER,
    PLAIN_KERNEL,
    of_vendor,
)

WIDTH = 80
_MODULE = "nn.Module: "
_MAX_SIGNATURE = 4096
_KERNEL_FUNCTION = re.compile(rf"(?:{NAMESPACES})(?:::\w+)+")
_IDENTIFIER = re.compile(r"(?<![\w:])(?:~?\w+::)*~?\w+")
_INNERMOST = re.compile(r"<[^<>]*>")

_PLACEHOLDER = {
    Kind.OP: "op",
    Kind.ANNOTATION: "annotation",
    Kind.GPU_ANNOTATION: "annotation",
    Kind.RUNTIME: "call",
    Kind.KERNEL: "kernel",
    Kind.MEMCPY: "copy",
    Kind.MEMSET: "set",
    Kind.PYTHON: "function",
}


class RedactedNames:
    """Says what the rows of one recording are called in evidence.

    Without ``redact`` all names are as recorded, shortened and safe to print.
    """

    def __init__(self, trace: Trace, *, redact: bool = True) -> None:
        self.trace = trace
        self.redact = redact
        self._known: dict[tuple[int, int], str] = {}

    def of(self, row: int) -> str:
        """Return the name of a row, at most 80 characters, all of them printable."""
        key = int(self.trace.kind[row]), int(self.trace.name[row])
        if key not in self._known:
            self._known[key] = elide(visible(self._of(*key)), WIDTH)
        return self._known[key]

    def lane(self, lane: int) -> str:
        """Return what a thread or stream is called."""
        place = self.trace.lanes[lane]
        if place.kind == "stream":
            return f"device {place.device} stream {place.stream}"
        if not self.redact:
            return elide(visible(self.trace.lane_label(lane)), WIDTH)
        return f"thread {self._threads[lane]}"

    @cached_property
    def _threads(self) -> dict[int, int]:
        hosts = [at for at, lane in enumerate(self.trace.lanes) if lane.kind != "stream"]
        return {lane: number for number, lane in enumerate(hosts, 1)}

    def _of(self, kind: int, code: int) -> str:
        name = self.trace.names[code]
        what = Kind(kind)
        if what == Kind.PYTHON:
            return self._python(name, code).removeprefix("<").removesuffix(">")
        if self.redact:
            return self._public(what, name, code) or f"{_PLACEHOLDER.get(what, 'event')}#{code}"
        return short_name(name) if what == Kind.KERNEL else frame_label(name)

    @staticmethod
    def _public(kind: Kind, name: str, code: int) -> str:
        """Return what may be shown of a name that is no Python frame's; empty for nothing."""
        if kind == Kind.KERNEL:
            return _kernel(name, code)
        if kind in (Kind.MEMCPY, Kind.MEMSET):
            known = COPY.fullmatch(name)
        elif kind == Kind.RUNTIME:
            known = CALL.fullmatch(name)
        elif kind in (Kind.ANNOTATION, Kind.GPU_ANNOTATION):
            # whoever writes record_function can write an operator's name
            known = ANNOTATION.fullmatch(name)
        else:
            known = OPERATOR.fullmatch(name) or ANNOTATION.fullmatch(name)
        return frame_label(name) if known else ""

    def _python(self, name: str, code: int) -> str:
        if not self.redact:
            return frame_label(name)
        if name.startswith(_MODULE):
            module, _, number = name[len(_MODULE) :].rpartition("_")
            return name if module in MODULES and number.isdecimal() else f"module#{code}"
        frame = parse_frame(name)
        if frame is None:
            builtin = BUILTIN.fullmatch(name)
            known = builtin is not None and (
                builtin["name"] in KNOWN_BUILTINS
                if builtin["owner"] in (None, "type", "module")
                else OWNER.fullmatch(builtin["owner"])
            )
            return frame_label(name) if known else f"builtin#{code}"
        if GENERATED_FILE.fullmatch(frame.file):
            return f"function#{code} in {frame.file} line {frame.line}"
        # the user's folder may be called as an engine is
        if file := library_path(frame.file, anywhere=()):
            return f"{file}({frame.line}): {frame.function}"
        return f"function#{code} in file#{self._files[frame.file]} line {frame.line}"

    @cached_property
    def _files(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for code, name in enumerate(self.trace.names):
            frame = parse_frame(name)
            if frame is not None:
                found.setdefault(frame.file, code)
        return found


def _kernel(name: str, code: int) -> str:
    """Return what may be shown of a kernel's name; empty for nothing.

    A template's arguments are shown where each of them is known, the user's functors are not.
    """
    if fused := FUSED.match(name):
        return f"{fused[0]}#{code}"
    if name.startswith(("_ZN2at", "_ZN3c10")):
        # the arguments of a mangled name come after "<"
        return short_name(name).partition("<")[0]
    function = short_name(name) if name.startswith("Cijk_") else _kernel_function(name)
    if not (PLAIN_KERNEL.fullmatch(function) or _KERNEL_FUNCTION.fullmatch(function) or of_vendor(function)):
        return ""
    text = name.replace(f"{ANONYMOUS}::", "").replace(ANONYMOUS, "")
    known = len(name) <= _MAX_SIGNATURE and all(
        match == function or ARGUMENT.fullmatch(match) or of_vendor(match.partition("::")[0])
        for match in _IDENTIFIER.findall(text)
    )
    return short_name(name) if known else short_name(function.rpartition("::")[2])


def _kernel_function(name: str) -> str:
    """Return the function in a kernel's signature, without return type and template arguments."""
    text = name[:_MAX_SIGNATURE].replace(f"{ANONYMOUS}::", "")
    shorter = _INNERMOST.sub("", text)
    while shorter != text:
        text, shorter = shorter, _INNERMOST.sub("", shorter)
    return re.split(r"[<(]", text, maxsplit=1)[0].rpartition(" ")[2]

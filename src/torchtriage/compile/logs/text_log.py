"""What ``TORCH_LOGS=graph_breaks,recompiles,guards`` prints, alone or amid other output.

An entry is a line. Lines of one message follow each other; a message begins with words of its own. Graph breaks are
also read without the logger's prefix, and as ``torch._dynamo.explain`` prints them or programs store them as JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec

from torchtriage.compile.logs.breaks import Break, parse_break, parse_restart
from torchtriage.compile.logs.entries import BLOCK_BYTES, Readable
from torchtriage.compile.logs.guards import parse_guards
from torchtriage.compile.logs.locations import user_frame
from torchtriage.compile.logs.process_log import ProcessLog
from torchtriage.compile.logs.recompiles import parse_failure
from torchtriage.core.errors import LogError
from torchtriage.core.finding import Frame

MAX_JSON_BYTES = 256 << 20
_TRACES = "analyse traces with: torchtriage analyze FILE"
MAX_LINE_BYTES = 1 << 20
MAX_TEXT = 1 << 13
"""Characters of a line that are read: a longer one is no text for people."""
MAX_LINES = 20_000
"""Of one message."""
_LINE = re.compile(
    # after what torchrun --tee or a cluster's log puts before it; most lines of a program have no ]
    r"^(?=[^\]]*\])[^\"{]{0,120}?(?:\[(?P<tee>default\d+)\]:\s*)?(?:\[rank(?P<rank>\d+)\]:\s*)?(?<!\w)[VDIWEC]"
    r"(?P<stamp>\d{4} \d\d:\d\d:\d\d\.\d+) +\d+ [^\]]*\]"
    r"(?: \[(?P<id>!?\d+/\d+(?:/\d+)?)(?:_\d+)?\])?(?: \[__(?P<kind>\w+)\])?(?: (?P<text>.*))?$"
)
_BEGINS = {
    "graph_breaks": re.compile(r"^Graph break\b"),
    "recompiles": re.compile(r"^Recompiling function "),
    "recompiles_verbose": re.compile(r"^Recompiling function "),
    "guards": re.compile(r"^GUARDS:"),
    "limit": re.compile(r"^torch\._dynamo hit config\.\w*limit"),
    "cudagraphs": re.compile(r"skipping cudagraphs", re.IGNORECASE),
    "perf_hints": re.compile(r"skipping cudagraphs", re.IGNORECASE),
}
_ALONE = re.compile(r"^Graph break ?(?:\(|in user code|:)")
_ENDS_ALONE = re.compile(r"^# |^[VDIWEC]\d{4} \d\d:")
# as print(torch._dynamo.explain(f)(x)) has them
_EXPLAINED = re.compile(r"^ {2}Break Reason \d+:$")
_ENDS_EXPLAINED = re.compile(r"^(?:Ops per Graph|Out Guards|Compile Times):|^[VDIWEC]\d{4} \d\d:")
_REASON = re.compile(r"^ {4}Reason: (?P<reason>.*?)\n {4}User Stack:\n(?P<stack>.*)$", re.DOTALL)
_SUMMARY = re.compile(r"^ {6}<FrameSummary file (?P<file>.+), line (?P<line>\d{1,9}) in (?P<name>.+)>$")
_RECOMPILING = re.compile(r"^Recompiling function (?P<name>\S+) in (?P<file>.+):(?P<line>\d+)")
_LIMIT = re.compile(r"function: '(?P<name>[^']+)' \((?P<file>.+):(?P<line>\d+)\)")


def read_text(log: ProcessLog, stream: Readable) -> list[ProcessLog]:
    """Take in a text log, and return that of each process in it: each has compile ids of its own.

    Processes are told apart by their ranks, before they have one by torchrun's number; lines without either are of the
    first. Lines of other loggers and of the program are counted and left out.
    """
    logs: list[ProcessLog] = []
    readers = {"": _MessageReader(log)}
    try:
        for line in _lines(stream):
            line = line[:MAX_TEXT]
            match = _LINE.match(line)
            tee, rank = (match["tee"] or "", match["rank"] or "") if match else ("", "")
            name = rank or tee
            if name not in readers:
                known = readers.get(tee) if tee else None
                if known is None or known.log.logged_rank is not None:
                    logs.append(ProcessLog(log.path, form=log.form) if logs else log)
                    known = _MessageReader(logs[-1])
                if rank:
                    known.log.logged_rank = int(rank[:9])
                readers[name] = known
                readers.setdefault(tee or name, known)
            if name and not readers[""].id:
                readers[""].close()  # printed lines end where the logger's begin
            readers[name].take(line, match)
    except (EOFError, OSError) as error:
        log.end = f"the file cannot be read to its end: {error}"
    for reader in readers.values():
        reader.close()
    if len(logs) > 1:
        log.named_rank = None  # the name is that of all
    found = logs or [log]
    for of_process in found:
        of_process.finish()
    return found


def _lines(stream: Readable) -> Iterator[str]:
    rest = b""
    while block := stream.read(BLOCK_BYTES):
        *whole, rest = (rest + block).split(b"\n")
        for line in whole:
            yield line.decode("utf-8", "replace").rstrip("\r")
        if len(rest) > MAX_LINE_BYTES:
            yield rest.decode("utf-8", "replace")
            rest = b""
    if rest:
        yield rest.decode("utf-8", "replace").rstrip("\r")


class _MessageReader:
    """Puts the lines of a message together."""

    def __init__(self, log: ProcessLog) -> None:
        self.log = log
        self.kind = ""
        self.id = ""
        self.lines: list[str] = []
        self.n_lines = 0
        self.recompiled: dict[str, str] = {}

    def take(self, line: str, match: re.Match[str] | None) -> None:
        """Use a line; ``match`` : the logger's prefix in it."""
        self.log.n_read += 1
        if match is None:
            self._plain(line)
            return
        kind, compile_id, text = match["kind"] or "", match["id"] or "", match["text"] or ""
        if not self.log.started:
            self.log.started = match["stamp"]
        if not kind:
            kind = "limit" if _BEGINS["limit"].match(text) or self.kind == "limit" else ""
        begins = _BEGINS.get(kind)
        if begins is None:
            self._skip("line of another logger")
        elif begins.search(text):
            self._begin(kind, compile_id, [text])
        elif (kind, compile_id) == (self.kind, self.id):
            self._more(text)
        else:
            self._skip("line of a message without its beginning")

    def _plain(self, line: str) -> None:
        if _EXPLAINED.match(line):
            self._begin("explain", "", [])
        elif self.kind == "explain" and not _ENDS_EXPLAINED.match(line):
            self._more(line)
        elif _ALONE.match(line):
            self._begin("graph_breaks", "", [line])
        elif self.kind == "graph_breaks" and not self.id and not _ENDS_ALONE.match(line):
            self._more(line)
        else:
            self._skip("line of the program" if line.strip() else "empty line")

    def _skip(self, reason: str) -> None:
        self.close()
        self.log.skipped[reason] += 1

    def _begin(self, kind: str, compile_id: str, lines: list[str]) -> None:
        self.close()
        self.kind, self.id, self.lines, self.n_lines = kind, compile_id, lines, 1

    def _more(self, text: str) -> None:
        self.n_lines += 1
        if len(self.lines) < MAX_LINES:
            self.lines.append(text)

    def close(self) -> None:
        """Use the message that is complete now."""
        kind, lines, number = self.kind, self.lines, self.n_lines
        self.kind, self.lines, self.n_lines = "", [], 0
        if not kind:
            return
        reason = self._use(kind, "\n".join(lines))
        self.log.kinds[kind] += 1
        if reason is None:
            self.log.n_used += number
        else:
            self.log.skipped[reason] += number

    def _use(self, kind: str, text: str) -> str | None:
        log, compile_id = self.log, self.id
        if kind in ("graph_breaks", "explain"):
            graph_break = parse_break(text) if kind == "graph_breaks" else _explained(text)
            if graph_break is None:
                return "graph break that cannot be read"
            log.saw_break(graph_break, log.compilation(compile_id))
        elif kind == "guards":
            log.compilation(compile_id).guards = parse_guards(text)
        elif kind == "limit":
            function = _LIMIT.search(text)
            compilation = log.compilation(compile_id)
            if function is not None and not compilation.name:
                compilation.name, compilation.file = function["name"], function["file"]
                compilation.line = int(function["line"][:9])
            compilation.limit = text.split("\n", 1)[0]
        elif kind in ("cudagraphs", "perf_hints"):
            log.cudagraph_skips[text[:500]] += 1
        else:
            return self._recompile(kind, text)
        return None

    def _recompile(self, kind: str, text: str) -> str | None:
        log, compile_id = self.log, self.id
        head = _RECOMPILING.match(text)
        reasons = re.split(r"\n[^\S\n]*- ", text)[1:]
        plain = (re.sub(r"\n[^\S\n]*(?=User stack trace:)", "\n", reason).rstrip() for reason in reasons)
        failures = [parse_failure(reason) for reason in plain]
        if head is None or not failures:
            return "recompilation without a reason"
        if self.recompiled.setdefault(compile_id, kind) != kind:
            return "recompilation reported twice, by recompiles and recompiles_verbose"
        compilation = log.compilation(compile_id)
        compilation.name, compilation.file, compilation.line = head["name"], head["file"], int(head["line"][:9])
        log.saw_recompile(failures, compilation)
        return None


def _explained(text: str) -> Break | None:
    """Return the break that ``explain`` prints: its reason, and its frames, outermost first."""
    match = _REASON.match(text)
    if match is None:
        return None
    graph_break = parse_break(match["reason"]) or parse_restart(match["reason"])
    frames = [
        Frame(row["file"], int(row["line"]), row["name"], True)
        for line in match["stack"].split("\n")
        if (row := _SUMMARY.match(line))
    ]
    stack = tuple(reversed(frames))
    if graph_break.stack or not stack:
        return graph_break
    return replace(graph_break, frame=graph_break.frame or stack[0], stack=stack, caller=user_frame(stack))


def read_explain(log: ProcessLog, stream: Readable) -> ProcessLog:
    """Take in every reason of every ``break_reasons`` in a JSON document; an entry is a reason.

    Raises LogError: it has none, is not JSON to its end, or too large for a summary.
    """
    data = bytearray()
    while block := stream.read(BLOCK_BYTES):
        data += block
        if len(data) > MAX_JSON_BYTES:
            raise LogError(f"expected less than {MAX_JSON_BYTES >> 20} MiB of JSON", where=log.path, hint=_TRACES)
    if b'"break_reasons"' not in data:
        raise LogError("expected a compile log, found JSON without break_reasons", where=log.path, hint=_TRACES)
    try:
        document = msgspec.json.decode(data.removeprefix(b"\xef\xbb\xbf"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LogError(
            f"expected JSON with break_reasons, found some that cannot be read: {error}",
            where=log.path,
            hint="write it again; a file that was cut is not repaired",
        ) from None
    for reasons in _break_reasons(document):
        log.kinds["explain"] += 1
        for entry in reasons:
            log.n_read += 1
            text = entry.get("reason") if isinstance(entry, dict) else entry
            if not isinstance(text, str) or not text.strip():
                log.skipped["graph break that cannot be read"] += 1
                continue
            log.saw_break(parse_break(text) or parse_restart(text), log.compilation(""))
            log.n_used += 1
            log.kinds["graph_breaks"] += 1
    log.finish()
    return log


def _break_reasons(document: Any) -> Iterator[list[Any]]:
    """Yield the lists named ``break_reasons``, in the order of the document."""
    todo = [document]
    while todo:
        node = todo.pop()
        if isinstance(node, dict):
            reasons = node.get("break_reasons")
            if isinstance(reasons, list):
                yield reasons
            todo += reversed([value for name, value in node.items() if name != "break_reasons"])
        elif isinstance(node, list):
            todo += reversed(node)

"""Finds out what a target is, and takes a capture of it by the way it offers; or says what it waits for."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from torchtriage.core.errors import AttachError, TriageError, UsageError
from torchtriage.core.finding import Note
from torchtriage.diagnose.attach import debug_server, dynolog, flight_recorder, sampler, serving
from torchtriage.diagnose.attach.captured import Captured
from torchtriage.diagnose.attach.flight_recorder import Dump
from torchtriage.diagnose.attach.hang import judge
from torchtriage.diagnose.attach.processes import MAY_READ, Process, Thread, dump_stacks, ranks_of
from torchtriage.diagnose.attach.result import HangResult
from torchtriage.diagnose.attach.web import Address, check_reach, parse_address

DUMP_VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
STILL = "nothing-moves"
"""The code of the note that a capture was wanted, and nothing moved."""
LACKS = "not-seen"
_DYNOLOG = "dynolog://"


@dataclass(frozen=True)
class Wish:
    """What is wanted of a job.

    ``steps`` : in place of ``seconds``, where the target counts steps. ``folder`` : where it writes its traces, a new
    folder without. ``dumps`` : flight recorders that were written. ``only_stacks`` : no capture.
    """

    seconds: float = 5.0
    steps: int | None = None
    ranks: frozenset[int] | None = None
    folder: Path | None = None
    dumps: Path | None = None
    timeout_s: float = 60.0
    allow_remote: bool = False
    token: str = ""
    only_stacks: bool = False


def attach(target: str, wish: Wish) -> Captured | HangResult:
    """Return traces of a job that runs, or why it does not move.

    ``target`` : a URL, HOST:PORT, a pid, or dumps of flight recorders.

    Raises TriageError: the target offers nothing, or what it offers fails.
    """
    if target.isascii() and target.isdecimal():
        return _process(target, wish)
    is_dynolog = target.startswith(_DYNOLOG)
    address = parse_address(target.removeprefix(_DYNOLOG), token=wish.token)
    if address is not None:
        check_reach(address.host, wish.allow_remote)
        return _address(address, is_dynolog or address.port == dynolog.PORT, wish)
    path = Path(target)
    if target and (path.exists() or _begins_files(path)):
        return judge(target, _read_dumps(replace(wish, dumps=path), {}), {})
    raise UsageError(
        "expected a URL (http://localhost:8000), HOST:PORT, a pid, or dumps of flight recorders", where=target
    )


def _begins_files(path: Path) -> bool:
    try:
        return any(other.name.startswith(path.name) for other in path.parent.iterdir())
    except OSError:
        return False


# -- a server ------------------------------------------------------------------------------------


def _address(address: Address, is_dynolog: bool, wish: Wish) -> Captured | HangResult:
    if is_dynolog:
        _expect_whole_recording("dynolog", wish)
        if not dynolog.status(address):
            raise AttachError("expected a dynolog, found nothing that answers as one does", where=str(address))
        return _dynolog(address, frozenset(), wish)
    if debug_server.answers(address):
        return _debug_server(address, wish)
    engine = serving.which(address)
    if not engine:
        raise AttachError(
            "something answers there, and it is neither a debug server of torch.distributed (page /), nor SGLang"
            " (/model_info), nor vLLM (/version)",
            where=str(address),
            hint=f"for dynolog, name the port: {_DYNOLOG}{address.host}:{address.port}",
        )
    _expect_whole_recording(engine, wish)
    if engine == "vLLM" and wish.folder is None:
        written = os.environ.get("VLLM_TORCH_PROFILER_DIR")
        if not written:
            raise UsageError(
                "vLLM does not say where it writes its traces",
                hint="--dir DIR, the torch_profiler_dir of its --profiler-config",
            )
        wish = replace(wish, folder=Path(written))
    return _with_folder(
        wish,
        lambda folder: serving.capture(
            address, engine, folder, seconds=wish.seconds, steps=wish.steps, timeout_s=wish.timeout_s
        ),
    )


def _expect_whole_recording(who: str, wish: Wish) -> None:
    if wish.only_stacks:
        raise UsageError(f"{who} provides no stacks", hint="torchtriage attach --stacks PID, for the pid of a worker")
    if wish.ranks is not None:
        raise UsageError(f"{who} cannot record only some ranks", hint="leave out --ranks: all are recorded")


def _dynolog(address: Address, pids: frozenset[int], wish: Wish) -> Captured:
    return _with_folder(
        wish,
        lambda folder: dynolog.capture(
            address, folder, pids=pids, seconds=wish.seconds, steps=wish.steps, timeout_s=wish.timeout_s
        ),
    )


def _debug_server(address: Address, wish: Wish) -> Captured | HangResult:
    if not wish.only_stacks:
        captured = _with_folder(
            wish, lambda folder: debug_server.capture(address, folder, seconds=wish.seconds, ranks=wish.ranks), new=True
        )
        if not captured.still:
            return captured
    notes = [] if wish.only_stacks else _still(captured)
    stacks, silent = debug_server.stacks_of(address)
    notes += [Note(LACKS, "warn", message) for message in silent]
    dumps = {}
    try:
        for rank, data in debug_server.dumps_of(address).items():
            dumps[rank] = flight_recorder.parse(data, f"{address}, rank {rank}")
    except AttachError as error:
        notes.append(_lacks(error))
    named = {f"rank {rank}": threads for rank, threads in stacks.items()}
    return judge(str(address), _read_dumps(wish, dumps), named, notes, ranks=stacks)


# -- processes -----------------------------------------------------------------------------------


def _process(target: str, wish: Wish) -> Captured | HangResult:
    found = ranks_of(int(target[:20]))  # so many digits are no pid, and thousands no number for Python
    processes = [process for process in found if wish.ranks is None or process.rank in wish.ranks]
    if not processes:
        names = ", ".join(process.name for process in found[:8])
        raise UsageError(f"expected ranks of the job, found none of those asked for: it has {names}", where=target)
    if wish.only_stacks:
        return _hang(target, processes, wish, [])
    listening = [process for process in processes if sampler.sockets_of(process.pid)]
    if listening:
        captured = sampler.capture(listening, wish.steps or 3, wish.timeout_s)
        return _hang(target, processes, wish, _still(captured)) if captured.still else captured
    if any(process.env.get("KINETO_USE_DAEMON", "0") != "0" for process in processes):
        return _dynolog(Address("localhost", dynolog.PORT), frozenset(process.pid for process in processes), wish)
    hidden = "; ".join(f"{process.name}, {process.hidden}" for process in processes[:8] if process.hidden)
    if hidden:
        raise AttachError(f"cannot tell whether it takes captures; not readable: {hidden}", where=target, hint=MAY_READ)
    raise AttachError(
        f"nothing in {', '.join(process.name for process in processes[:8])} takes captures; tried: the socket of a"
        " tt.sample(...) (none), dynolog (KINETO_USE_DAEMON is not set)",
        where=target,
        hint="--stacks shows where it is; docs/attach.md says how to make a job recordable",
    )


def _hang(target: str, processes: list[Process], wish: Wish, notes: list[Note]) -> HangResult:
    stacks: dict[str, list[Thread]] = {}
    dumps: dict[int, Dump] = {}
    for process in processes:
        listens = bool(sampler.sockets_of(process.pid))
        try:
            stacks[process.name] = _stacks(process.pid, listens)
        except TriageError as error:
            notes.append(_lacks(error))
        if listens and process.rank is not None:
            try:
                read = [flight_recorder.parse(data, process.name) for data in sampler.dumps_of(process.pid)]
            except TriageError as error:
                notes.append(_lacks(error))
            else:
                # of two backends the one that was used
                dumps |= {process.rank: max(read, key=lambda dump: len(dump.records))} if read else {}
    if not stacks and not dumps and wish.dumps is None:
        raise AttachError(
            "no process says where it is: " + "; ".join(note.message for note in notes),
            where=target,
            hint=next((note.fix for note in notes if note.fix), ""),
        )
    ranks = [process.rank for process in processes if process.rank is not None]
    return judge(target, _read_dumps(wish, dumps, processes), stacks, notes, ranks=ranks)


def _stacks(pid: int, listens: bool) -> list[Thread]:
    if listens:
        try:
            return sampler.stacks_of(pid)
        except AttachError:
            pass  # it may hold the interpreter's lock, or be stopped: py-spy needs neither
    return dump_stacks(pid)


def _read_dumps(wish: Wish, known: Mapping[int, Dump], processes: list[Process] | None = None) -> dict[int, Dump]:
    """Return the dumps of files named or written by these processes, and those that are known."""
    paths: dict[int, Path] = {}
    if wish.dumps is not None:
        paths = flight_recorder.find_dumps(wish.dumps)
    for process in processes or []:
        begin = next((process.env[name] for name in DUMP_VARIABLES if name in process.env), None)
        if begin and process.rank is not None and wish.dumps is None:
            path = Path(f"{begin}{process.rank}")
            if path.is_file():
                paths[process.rank] = path
    return {rank: flight_recorder.read(path) for rank, path in paths.items()} | dict(known)


def _still(captured: Captured) -> list[Note]:
    left = f"; recorded were {', '.join(map(str, captured.files[:4]))}" if captured.files else ""
    return [Note(STILL, "info", f"{captured.still}{left}", "a job that is idle, and not hung, looks the same")]


def _lacks(error: TriageError) -> Note:
    return Note(LACKS, "warn", f"{error.where}: {error.message}" if error.where else error.message, error.hint)


def _with_folder(wish: Wish, take: Callable[[Path], Captured], *, new: bool = False) -> Captured:
    """Take a capture into the folder that was named, or a new one; none that was made stays empty.

    ``new`` : one inside of the folder that was named, whose files are not ours to replace.
    """
    folder = wish.folder or Path()
    if new or wish.folder is None:
        folder /= f"torchtriage-attach-{time.strftime('%Y%m%d-%H%M%S')}"
        new = True
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=not new)
    except OSError as error:
        raise UsageError(f"cannot be made: {error.strerror}", where=str(folder), hint="--dir DIR") from error
    try:
        return take(folder)
    finally:
        with suppress(OSError):
            for path in made:
                path.rmdir()

"""A thread spins and takes the interpreter from the others.

Looks like: ``Thread(target=f)`` where ``f`` loops without a call that waits (``sleep``, ``wait``,
    ``get``, ``recv``); ``while not ready: pass``.
Slow because: one thread runs Python at a time. One that never waits takes half of the time, in turns
    of five milliseconds, from the one that launches the work.
Fix: wait for an event or a queue; or sleep in each turn.
Quiet when: some call in the loop waits.
Source: Python documentation of ``threading``; ``sys.setswitchinterval``.
"""

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceFunction, keyword, text_of

RULE = Rule("HST108", "spinning-thread", "host", "A spinning thread holds the interpreter lock", "medium")

FIX = Fix(
    text="Wait in each iteration.",
    code="""while not stopped.wait(0.1):     # threading.Event: sleeps, and wakes when it is set
    publish(latest)""",
    link="https://docs.python.org/3/library/threading.html#threading.Event.wait",
)

_WAITS = re.compile(
    r"sleep|wait|^get$|^put$|recv|accept|select|poll|^join$|acquire|^read|readline|synchronize|^next$|^step$|await|^run$|fetch"
    r"|request|^result$|consume|pop$|capture|grab|^item$|^cpu$"
)
_THREADS = ("threading.Thread", "Thread", "threading.Timer")


def find(module: Module) -> Iterator[Hit]:
    """Yield loops of threads, and empty loops of the program, in which nothing waits."""
    targets: set[SourceFunction] = set()
    for call in module.called(*_THREADS):
        node = keyword(call.node, "target")
        if node is not None:
            targets |= set(module.value(node).calls)
    for known in module.classes.values():
        if any(base.rpartition(".")[2] == "Thread" for base in known.bases) and "run" in known.methods:
            targets.add(known.methods["run"])
    for loop in module.loops:
        if not isinstance(loop.node, ast.While):
            continue
        empty = all(isinstance(item, ast.Pass | ast.Continue) for item in loop.node.body)
        if (loop.function in targets or empty) and not _waits(module, loop.node):
            yield Hit(loop.node, f"nothing waits in this loop: while {text_of(loop.node.test)}")


def _waits(module: Module, node: ast.While) -> bool:
    waiting: list[ast.AST] = [node]
    seen: set[str] = set()
    while waiting:
        for item in ast.walk(waiting.pop()):
            if isinstance(item, ast.With | ast.AsyncWith | ast.Await):
                return True  # a lock, perhaps
            if isinstance(item, ast.Call):
                name = text_of(item.func, 200).rpartition(".")[2]
                if _WAITS.search(name):
                    return True
                if name not in seen:
                    seen.add(name)
                    waiting += [function.node for function in module.functions if function.name == name]
    return False

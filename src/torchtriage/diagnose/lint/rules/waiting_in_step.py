"""Every step sleeps, or waits for another program.

Looks like: ``time.sleep(0.01)`` with a fixed time, ``subprocess.run``, ``os.system`` or an HTTP
    request in a loop of steps, or in what it calls; ``while ticket not in self.results: time.sleep(0.05)``, and
    ``if queue.empty(): time.sleep(0.01)``, where what is waited for is in this program.
Slow because: the step does nothing meanwhile; a process takes milliseconds to start.
Fix: wait for an event (``queue.get()``, ``Event.wait()``) instead of polling; ask other programs
    before the loop or in a thread; pace a loop by its deadline.
Quiet when: the time to sleep is computed (a paced loop), or it is behind ``if step % n``; what is waited for
    is a file, a process or a server; the wait is for the start or the end of the program.
Source: Python documentation of ``queue``, ``threading`` and ``subprocess``.
"""

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceCall, SourceLoop, text_of
from torchtriage.diagnose.lint.syntax import holds

RULE = Rule("HST104", "waiting-in-step", "host", "Every step sleeps or waits for another program", "low")

FIX = Fix(
    text="Wait for the event itself, not for time to pass.",
    code="""item = requests.get()              # queue.Queue: wakes when there is one
delay = due - time.perf_counter()  # a paced loop sleeps for what is left
if delay > 0:
    time.sleep(delay)""",
    link="https://docs.python.org/3/library/queue.html#queue.Queue.get",
)

_PROGRAMS = re.compile(
    r"^subprocess\.(run|call|check_call|check_output|Popen|getoutput|getstatusoutput)$|^os\.(system|popen)$"
)
_NETWORK = re.compile(r"^(requests|httpx)\.(get|post|put|request)$|^urllib\.request\.urlopen$")


_OUTSIDE = re.compile(
    r"exists|isfile|stat\b|poll\(|requests?\.|http|urlopen|subprocess|nvidia|connect|ping|status|getsize|glob|listdir|"
    r"time\(|monotonic|perf_counter|now\(|input\("
)
_WAITED = re.compile(
    r" in |\.empty\(|qsize\(|len\(|is_set\(|\.done\(|\.ready\(|is_alive\(|(^|[\s.(!])(is_)?(done|ready|finished"
    r"|complete\w*|pending|result\w*|queue\w*|buffer\w*|batch\w*|inbox|tasks?|jobs?|items?|requests?|stop\w*|running)\b"
)


def find(module: Module) -> Iterator[Hit]:
    """Yield what makes each step wait."""
    for call in module.calls:
        if not call.name:
            continue
        if call.name in ("time.sleep", "asyncio.sleep") and call.node.args:
            seconds = module.constant(call.node.args[0], call.context)
            if not isinstance(seconds, int | float) or seconds <= 0:
                continue
            if call.context.hot:
                yield Hit(call.node, f"every step sleeps: {text_of(call.node)}", "sleep")
            elif _polls(module, call):
                yield Hit(
                    call.node, f"this polls for what an event would signal at once: {text_of(call.node)}", "sleep"
                )
        elif not call.context.hot:
            continue
        elif _PROGRAMS.match(call.name):
            yield Hit(call.node, f"every step starts a process: {text_of(call.node)}", call.attr, severity="medium")
        elif _NETWORK.match(call.name):
            yield Hit(call.node, f"every step waits for a server: {text_of(call.node)}", call.attr)


def _polls(module: Module, call: SourceCall) -> bool:
    """Return whether a loop sleeps until something of this program has changed."""
    loop = call.context.statement_loop
    if loop is None or not isinstance(loop.node, ast.While) or not module.is_program:
        return False
    if not (module.repeats(loop.context) or _serves(module, loop)):
        return False
    conditions = [loop.node.test]
    for node in ast.walk(loop.node):
        if isinstance(node, ast.If) and any(holds(statement, call.node) for statement in node.body):
            conditions.append(node.test)
        elif isinstance(node, ast.ExceptHandler) and holds(node, call.node):
            return node.type is not None and text_of(node.type).endswith("Empty")
    texts = [text_of(node, 200) for node in conditions if not isinstance(node, ast.Constant)]
    return bool(texts) and any(map(_WAITED.search, texts)) and not any(map(_OUTSIDE.search, texts))


def _serves(module: Module, loop: SourceLoop) -> bool:
    """Return whether a loop answers what others ask: it takes something from a queue, or runs a model."""
    function = loop.function
    if loop.runs_module or (function is not None and function.runs_module):
        return True
    return any(
        call.context.statement_loop is loop and call.attr in ("get", "get_nowait", "popleft", "pop")
        for call in module.calls
    )

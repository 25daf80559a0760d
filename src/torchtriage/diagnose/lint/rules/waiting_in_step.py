"""Every step sleeps, or waits for another program.

Looks like: ``time.sleep(0.01)`` with a fixed time, ``subprocess.run``, ``os.system`` or an HTTP
    request in a loop of steps, or in what it calls.
Slow because: the step does nothing meanwhile; a process takes milliseconds to start.
Fix: wait for an event (``queue.get()``, ``Event.wait()``) instead of polling; ask other programs
    before the loop or in a thread; pace a loop by its deadline.
Quiet when: the time to sleep is computed (a paced loop), or it is behind ``if step % n``.
Source: Python documentation of ``queue``, ``threading`` and ``subprocess``.
"""

import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, text_of

RULE = Rule("HST104", "waiting-in-step", "host", "Every step sleeps or waits for another program", "low")

FIX = Fix(
    text="Wait for what is to come, not for time to pass.",
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


def find(module: Module) -> Iterator[Hit]:
    """Yield what makes each step wait."""
    for call in module.calls:
        if not call.context.hot or not call.name:
            continue
        if _PROGRAMS.match(call.name):
            yield Hit(call.node, f"every step starts a process: {text_of(call.node)}", call.attr, severity="medium")
        elif _NETWORK.match(call.name):
            yield Hit(call.node, f"every step waits for a server: {text_of(call.node)}", call.attr)
        elif call.name == "time.sleep" and call.node.args:
            seconds = module.constant(call.node.args[0], call.context)
            if isinstance(seconds, int | float) and seconds > 0:
                yield Hit(call.node, f"every step sleeps: {text_of(call.node)}", "sleep")

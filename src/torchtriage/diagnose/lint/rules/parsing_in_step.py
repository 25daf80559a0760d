"""Python parses, compiles or serialises the same kind of thing in every step.

Looks like: ``pickle``, ``yaml``, ``json.load``, ``re.compile``, ``inspect`` or ``ast`` in a loop of
    steps; ``DataFrame.iterrows()`` as the loop of steps, ``apply(axis=1)`` in one.
Slow because: each call works through Python objects one by one: tens of microseconds to
    milliseconds of the host's time per step. ``iterrows`` builds a Series for every row.
Fix: do it once, before the loop; take columns as arrays (``df["x"].to_numpy()``).
Quiet when: it happens in a data set, or behind ``if step % n``.
Source: pandas documentation, "Enhancing performance".
"""

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceLoop, keyword, literal, text_of

RULE = Rule("HST103", "parsing-in-step", "host", "Python parses or serialises in every step", "low")

FIX = Fix(
    text="Do it once, before the loop.",
    code="""features = torch.from_numpy(df[columns].to_numpy("float32"))   # instead of df.iterrows()
for row in features.split(256):
    model(row)""",
    link="https://pandas.pydata.org/docs/user_guide/enhancingperf.html",
)

_SLOW = re.compile(
    r"^(pickle|cPickle|dill|cloudpickle)\.(dumps|loads|dump|load)$|^yaml\.\w*(load|dump)\w*$|^json\.(load|dump)$"
    r"|^re\.compile$|^inspect\.(signature|getsource|stack|currentframe)$|^ast\.(parse|literal_eval)$"
    r"|^xml\.etree\.ElementTree\.(parse|fromstring)$|^importlib\.import_module$"
)


def find(module: Module) -> Iterator[Hit]:
    """Yield such calls of hot code, and data frames that are walked row by row."""
    for call in module.calls:
        if call.context.hot and _SLOW.match(call.name):
            yield Hit(call.node, f"every step does this again in Python: {text_of(call.node)}", call.attr)
    for call in module.sent("iterrows", "itertuples"):
        loop = _loop_over(module, call.node)
        if call.context.hot or (loop is not None and loop.steps):
            said = "a Series is built for every row" if call.attr == "iterrows" else "one row at a time"
            yield Hit(call.node, f"{said}: {text_of(call.node)}", call.attr)
    for call in module.sent("apply"):
        if call.context.hot and literal(keyword(call.node, "axis")) == 1:
            yield Hit(call.node, f"a Python function runs for every row: {text_of(call.node)}", "apply")


def _loop_over(module: Module, node: ast.Call) -> SourceLoop | None:
    """Return the loop that goes over what a call gives."""
    for loop in module.loops:
        if not isinstance(loop.node, ast.While) and any(item is node for item in ast.walk(loop.node.iter)):
            return loop
    return None

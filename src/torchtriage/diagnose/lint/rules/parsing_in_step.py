"""Python parses, compiles or serialises the same kind of thing in every step.

Looks like: ``pickle``, ``yaml``, ``json.load``, ``re.compile``, ``inspect`` or ``ast`` in a loop of
    steps; ``DataFrame.iterrows()`` as the loop of steps, ``apply(axis=1)`` in one; weights that become
    lists and JSON, or tensors again, in each round: ``{k: v.tolist() for k, v in state.items()}``.
Slow because: each call works through Python objects one by one: tens of microseconds to
    milliseconds of the host's time per step. ``iterrows`` builds a Series for every row.
Fix: do it once, before the loop; take columns as arrays (``df["x"].to_numpy()``); pass tensors as they are, or their
    bytes (``torch.save``, ``safetensors``).
Quiet when: it happens in a data set, or behind ``if step % n``.
Source: pandas documentation, "Enhancing performance".
"""

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceLoop, keyword, literal, names_in, text_of
from torchtriage.diagnose.lint.facts import SourceCall
from torchtriage.diagnose.lint.syntax import holds

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


_WEIGHTS = re.compile(
    r"(^|[._])(state|state_dict|sd|params|parameters|named_parameters|weights|grads|gradients|delta|deltas)(\(\))?$"
)


def find(module: Module) -> Iterator[Hit]:
    """Yield such calls of hot code, and data frames that are walked row by row."""
    yield from _weights(module)
    for call in module.calls:
        if call.context.hot and _SLOW.match(call.name):
            yield Hit(call.node, f"every step does this again in Python: {text_of(call.node)}", call.attr)
    for call in module.sent("iterrows", "itertuples"):
        loop = _loop_over(module, call.node)
        if call.context.hot or (loop is not None and loop.steps):
            message = "a Series is built for every row" if call.attr == "iterrows" else "one row at a time"
            yield Hit(call.node, f"{message}: {text_of(call.node)}", call.attr)
    for call in module.sent("apply"):
        if call.context.hot and literal(keyword(call.node, "axis")) == 1:
            yield Hit(call.node, f"a Python function runs for every row: {text_of(call.node)}", "apply")


def _weights(module: Module) -> Iterator[Hit]:
    """Yield weights that become Python numbers, or come from them, in each round."""
    if "json" not in module.text and "tolist" not in module.text:
        return
    for call, over, targets in _beside(module, module.sent("tolist")):
        called = over.func if isinstance(over, ast.Call) else None
        values = called.value if isinstance(called, ast.Attribute) and called.attr in ("items", "values") else over
        if names_in(call.node) & targets and _WEIGHTS.search(text_of(values, 200)):
            yield Hit(call.node, f"all weights become Python numbers in each round: {text_of(call.node)}", "tolist")
    made = module.called("torch.tensor", "torch.as_tensor", "torch.FloatTensor", "numpy.array", "numpy.asarray")
    for call, over, targets in _beside(module, made):
        parsed: list[ast.AST] = list(ast.walk(over))
        for name in names_in(over):
            parsed += module.made_in(call.context.function, name)
        read = any(module.name_called(item) in _TEXTS for item in parsed)
        if names_in(call.node) & targets and read:
            yield Hit(call.node, f"tensors are read from text in each round: {text_of(call.node)}", call.attr)


_TEXTS = ("json.loads", "json.load", "orjson.loads", "ujson.loads", "ast.literal_eval", "yaml.safe_load")


def _beside(module: Module, calls: list[SourceCall]) -> Iterator[tuple[SourceCall, ast.expr, frozenset[str]]]:
    """Yield the calls in loops that run again and again, with what these go over, and their targets."""
    for call in calls:
        loop = call.context.loop
        if loop is not None and not isinstance(loop.node, ast.While) and module.repeats(loop.context):
            yield call, loop.node.iter, loop.targets


def _loop_over(module: Module, node: ast.Call) -> SourceLoop | None:
    """Return the loop that goes over what a call gives."""
    loops = (loop for loop in module.loops if not isinstance(loop.node, ast.While) and holds(loop.node.iter, node))
    return next(loops, None)

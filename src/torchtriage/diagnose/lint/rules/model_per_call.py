"""A model is loaded for each request or each call of a function that predicts.

Looks like: a route that calls ``get_model(name)``, which builds a model and loads its weights; ``model =
    torch.load(path)`` in ``predict(path, image)``; a class that loads its model in ``predict``.
Slow because: reading and copying the weights takes seconds, running the model milliseconds.
Fix: load it once, when the program starts, or keep it by name (``functools.lru_cache``).
Quiet when: the loader keeps what it has loaded, the load is behind a condition, or it runs once for a program.
Source: FastAPI documentation, "Lifespan Events".
"""

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceCall, SourceFunction, text_of
from torchtriage.diagnose.lint.torch_names import INFERENCE

RULE = Rule("HST134", "model-per-call", "host", "A model is loaded for each request", "high")

FIX = Fix(
    text="Load it once, and keep it.",
    code="""@functools.lru_cache(maxsize=None)
def get_model(name):
    ...""",
    link="https://fastapi.tiangolo.com/advanced/events/",
)

_LOADS = frozenset(["load_state_dict", "from_pretrained", "load_from_checkpoint", "load_model"])
_NAMED = frozenset(["torch.load", "torch.jit.load", "torch.hub.load", "safetensors.torch.load_file", "joblib.load"])
_KEEPS = re.compile(r"\bcached?\b|_cache|cache\[|\bglobal\b|setdefault|hasattr|singleton", re.IGNORECASE)
_LACKS = re.compile(r"is None|not in\b|^not ")
_DEPTH = 3


def find(module: Module) -> Iterator[Hit]:
    """Yield where a function that answers one request, or predicts in a loop, loads weights."""
    for function in module.functions:
        if not function.serves and not (function.called_in_loop and INFERENCE.match(function.name)):
            continue
        load = _load(module, function, 0)
        if load is not None:
            yield Hit(load.node, f"weights are loaded for each {function.name}(): {text_of(load.node)}", load.attr)


def _load(module: Module, function: SourceFunction, depth: int) -> SourceCall | None:
    """Return the call that reads weights in a function or below it, None where they are kept."""
    if depth > _DEPTH or _KEEPS.search(module.text_of(function)) or any(map(_KEEPS.search, function.decorators)):
        return None
    for call in module.calls_by_function[function]:
        if call.context.rare:
            continue
        branch = module.around(call.node, ast.If)
        if branch is not None and _LACKS.search(text_of(branch.test)):
            continue
        if call.attr in _LOADS or call.name in _NAMED:
            return call
        for callee in call.callees:
            if callee is not function and (load := _load(module, callee, depth + 1)) is not None:
                return load
    return None

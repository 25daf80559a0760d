"""An asynchronous endpoint computes on the event loop.

Looks like: ``async def`` under ``@app.post`` that calls a model, ``generate`` or a function that runs one, without
    ``await``.
Slow because: the event loop stands still until the model is done: no other request is read, answered or batched
    meanwhile, and health checks time out.
Fix: a plain ``def``, which the framework runs in a thread; ``await run_in_threadpool(predict, x)``; a queue whose
    worker gathers requests into batches.
Quiet when: the call is awaited, or handed to a thread or an executor.
Source: FastAPI documentation, "Concurrency and async / await".
"""

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceCall, SourceFunction, text_of

RULE = Rule("HST132", "blocking-endpoint", "host", "An asynchronous endpoint computes on the event loop", "low")

FIX = Fix(
    text="Run the model in a thread, or in a worker that gathers requests.",
    code="""@app.post("/predict")
def predict(item: Item):              # not async: the framework runs it in a thread
    return model(encode(item))""",
    link="https://fastapi.tiangolo.com/async/",
)


_PREPARES = re.compile(r"load|resolve|^_?get_|^_?(make|build|init|create|validate|warm)")


def find(module: Module) -> Iterator[Hit]:
    """Yield the first run of a model in each asynchronous endpoint."""
    if "async def" not in module.text:
        return
    done: set[SourceFunction] = set()
    for call in module.calls:
        function = call.context.function
        if function is None or function in done or not function.serves:
            continue
        if not isinstance(function.node, ast.AsyncFunctionDef) or isinstance(module.parents.get(call.node), ast.Await):
            continue
        if not _PREPARES.search(call.attr) and _runs(module, call):
            done.add(function)
            yield Hit(call.node, f"every other request waits for this: {text_of(call.node)}", "forward")


def _runs(module: Module, call: SourceCall) -> bool:
    """Return whether a call runs a model, itself or in a plain function of the file."""
    if call.runs_module:
        return True
    below = {
        callee
        for callee in call.callees
        if isinstance(callee.node, ast.FunctionDef) and not callee.is_generator and not _PREPARES.search(callee.name)
    }
    return any(inner.context.function in below and inner.runs_module for inner in module.calls if below)

"""What PyTorch says of the programs of the corpus."""

BREAKS: dict[str, str] = {
    "printing": "GB0059|print",
    "branching": "GB0170",
    "item_read": "GB0124|GB0033",
    "to_list": "GB0124|GB0033|tolist|Tensor.item",
    "asked_for": "GB0025",
    "nonzero_rows": "GB0036",
    "masked_index": "GB0036",
    "disabled_call": "GB0098|GB0099|disable",
    "bool_of_tensor": "GB0033|GB0124|GB0170|item",
    "while_tensor": "GB0170",
    "int_of_tensor": "GB0033|GB0124|item",
    "open_file": "GB0059|open|builtin",
    "save_file": "GB0007|GB0008|skipped|save",
    "numpy_random": "numpy|random",
    "size_of_object": "getsizeof|skipped|C function",
    "backward_call": "backward",
    "clock": "time|sleep|skipped|C function",
    "locking": "lock|acquire|method",
    "json_text": "json|C function|skipped|dumps",
    "date": "datetime|now",
    "generator": "random|Random|gauss",
    "writing": "write|stdout",
    "importing": "import",
    "digest": "md5|hash",
    "unique_values": "unique|GB0036|Dynamic",
    "subprocesses": "subprocess|run",
    "repeats": "repeat|GB0036|Dynamic",
    "seeding": "seed",
    "logging_call": "ogg",
    "warning": "warn",
}
"""Id or words of the type, explanation or context that PyTorch gives."""

GUARDS: dict[str, tuple[str, str]] = {
    "sizes": ("size", "x"),
    "dtypes": ("dtype", "x"),
    "ranks": ("rank", "x"),
    "grads": ("requires grad|dispatch keys", "x"),
    "strides": ("stride", "x"),
    "integers": ("number", "n"),
    "floats": ("number", "n"),
    "texts": ("text", "mode"),
    "flags": ("flag|object|number", "flag"),
    "nothings": ("none|object|type", "other"),
    "lengths": ("length", "xs"),
    "callables": ("object", "fn"),
    "modes": ("global state", ""),
    "keys": ("length|keys|type", "d"),
    "shared": ("aliasing|other", ""),
    "globally": ("number", "G['N_GLOBAL']"),
    "tuples": ("length", "xs"),
    "single_rows": ("size|shape guard", "x"),
    "default_dtypes": ("global state", ""),
    "subclasses": ("type|dispatch keys", "x"),
    "types": ("number|type", "n"),
    "bounded": ("size|shape guard", "x"),
    "Switching": ("training mode|flag|object", "self.training"),
    "Counting": ("number", "self.n"),
}
"""Classes that fit, and what the guard looks at."""

CURES: dict[str, str] = {
    "sizes": "mark_dynamic(x, 0)",
    "dtypes": "x = x.to(torch.float32)",
    "ranks": "x = x.flatten()",
    "grads": "x = x.detach()",
    "strides": "x = x.contiguous()",
    "integers": "n = torch.tensor(n)",
    "floats": "n = torch.tensor(n)",
    "texts": "choose the function outside",
    "nothings": "pass a tensor",
    "lengths": "pad a list",
    "callables": "fn is another object at each call",
    "modes": "keep it the same around the call",
    "keys": "the same keys",
    "shared": "y = y.clone()",
    "globally": "N_GLOBAL is a global number, and part of the graph: keep it as a tensor",
    "tuples": "pad a list",
    "single_rows": "mark_unbacked(x, 0)",
    "default_dtypes": "keep it the same around the call",
    "subclasses": "x.detach()",
    "types": "float(n), if both ints and floats occur",
    "bounded": "pad to a few sizes",
    "Counting": "keep it as a tensor",
}
"""What the report says, which the cured programs do; of what has none it says ``normal``."""

DYNAMIC = ("sizes", "integers", "floats")
"""Those of which the report says that ``dynamic=True`` saves the compilation."""

ORDINARY = ("flags", "Switching")

FIXES: dict[str, tuple[str, ...]] = {
    "Decide on the device: compute both sides and choose, or use torch.cond.": (
        "Data-dependent branching",
        "Data-dependent branching with non-constant __bool__",
    ),
    "Keep the value a tensor; where Python needs the number, read it outside, or let "
    "the compiler trace it as a symbol.": (
        "Data dependent operator",
        "Unsupported Tensor.item() call with capture_scalar_outputs=False",
    ),
    "Keep the values a tensor, or read them outside of the compiled function.": (
        "Tensor.tolist() with non-integer tensor",
    ),
    "Keep the shape fixed: torch.where or a mask instead of an index; or let the "
    "compiler trace sizes that depend on data.": ("Dynamic shape operator",),
    "Keep the shape fixed: torch.where or a mask instead of an index.": ("Dynamic shape operator (no meta kernel)",),
    "The break is asked for in the source: delete torch._dynamo.graph_break().": (
        "Call to `torch._dynamo.graph_break()`",
    ),
    "The break is asked for in the source: delete that call.": (
        "Call to `torch._dynamo.skip_frame()`",
        "Call to `torch._dynamo.step_unsupported()`",
    ),
    "The function called here is excluded from compilation: call it outside, or delete the decorator.": (
        "Skip calling `torch.compiler.disable()`d function",
        "Skip inlining `torch.compiler.disable()`d function",
    ),
    "Log outside of the compiled function, or tell the compiler to ignore the call.": (
        "logging.Logger method not supported for non-export cases",
    ),
    "What is called here cannot be traced: call it outside, or make it a custom operator.": (
        "Attempted to call function marked as skipped",
        "Attempted to inline function marked as skipped",
        "Attempted to inline function marked as skipped (SkipFunctionVariable)",
    ),
    "The configuration disables tracing of numpy: enable it.": (
        "Tensor.numpy() with trace_numpy=False",
        "attempted to trace numpy function with config.trace_numpy=False",
        "call `torch.from_numpy` with `torch._dynamo.config.trace_numpy=False`",
    ),
    "Use the torch function of the same name instead of numpy's.": (
        "Unsupported ndarray attribute access",
        "Unsupported ndarray method call",
        "Unsupported ndarray.__version__ access",
        "attempted to trace numpy function unsupported by PyTorch",
        "attempted to trace numpy.* function as a method",
        "attempted to trace torch._numpy.random function with config.use_numpy_random_stream=True",
        "ndarray.astype(object)",
        "numpy function that produces a const collection type encountered non-const arguments",
    ),
    "Fix what causes the recompilations; the limit only ends them.": ("Dynamo recompile limit exceeded",),
    "A break in a loop leaves the whole function uncompiled: take what breaks out of "
    "the loop, or make the loop's body a function and compile that.": ("graph break in loop",),
    "The backend failed on this graph: the message names the operator to replace.": ("Backend compiler exception",),
    "Call the collective without async_op: the compiler places the wait itself.": (
        "async_op=True for distributed collectives",
    ),
    "Enter the context manager outside of the compiled function.": (
        "Attempted to reconstruct context manager's __enter__ method",
        "Graph break under GenericContextWrappingVariable",
        "Unsupported context manager",
        "attempted to trace contextlib.contextmanager",
        "non-generator contextlib.contextmanager",
        "reconstructing @contextmanager object",
    ),
    "Use the default generator inside of the compiled function, or draw the numbers outside.": (
        "torch.Generator method",
    ),
    "Build the values in a list before the compiled function.": (
        "Attempt to trace generator",
        "Generator reconstruction with mutations",
        "Unreachable sub-generator code",
        "call_method on generator",
        "infinite generator detected",
    ),
    "Call backward outside of the compiled function: its graph is compiled all the same.": (
        "Unsupported Tensor.backward() call",
        "backward() with empty inputs",
        "backward() with in-graph created tensor",
        "backward() with non-leaf tensor",
    ),
    "Return the value and store it outside of the compiled function.": (
        "Failed to mutate tensor data attribute",
        "Failed to mutate tensor data attribute to different dtype",
        "Failed to set tensor attribute",
        "HOP: Unsafe side effect",
        "P2POp mutation",
        "Unsupported attribute assignment on Exception object",
        "nn.Module mutation in HigherOrderOp",
        "non-const setattr name on user-defined object",
        "optimizer: pending mutation on parameter",
        "setattr() on Tensor.requires_grad",
        "setattr() on unsupported type",
    ),
    "Handle the error outside of the compiled function; check its cause before the call.": (
        "Caught non-Exception value",
        "Exception with bad expected type",
        "Exception with non-type expectation",
        "Failed to raise exception",
        "Keyword args passed to exception constructor",
        "Observed exception",
        "Observed exception (EXCEPT_HANDLER)",
    ),
    "Call the method outside of the compiled function, or use a tensor operation instead.": (
        "Unhandled args for method",
        "Unhandled tensor method",
        "Unsupported Tensor.requires_grad_() call",
        "Unsupported Tensor.resize_() call",
        "Unsupported Tensor.resize_as_() call",
        "Unsupported Tensor.set_() call",
        "Unsupported Tensor.share_memory_() call",
        "Unsupported Tensor.sparse_resize_() call",
        "Unsupported Tensor.sparse_resize_and_clear_() call",
        "Unsupported method call",
    ),
    "Call it outside of the compiled function, or make it a custom operator.": (
        "Attempted to a str() method implemented in C/C++",
        "Attempted to call repr() method implemented in C/C++",
        "Failed to trace builtin operator",
        "can't handle functions not implemented in python ",
        "unimplemented builtin op on tensor arguments",
        "unimplemented builtin op vars() with no arguments",
    ),
}
"""The types of break that have a fix of their own, by what it says."""

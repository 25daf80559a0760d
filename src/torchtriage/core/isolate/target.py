"""The target in its own process: find it, call it, and make a step of what it returns.

A target is a function. It may take ``batch_size``, ``dtype`` and ``device`` by these names, and returns ``(model,
inputs)``, ``(model, inputs, loss)`` or something to call without arguments.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import importlib
import importlib.util
import inspect
import os
import random
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

SEED = 0
ASKED = ("batch_size", "dtype", "device")
INSTALLED = frozenset({"site-packages", "dist-packages"})


class TargetError(Exception):
    """The target cannot be used; one line for its author, and what to try."""

    def __init__(self, message: str, hint: str = "") -> None:
        self.message = message
        self.hint = hint
        super().__init__(message)


@dataclasses.dataclass
class Case:
    """A model and its inputs, ready to be called; ``model`` may be any callable without inputs."""

    model: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    loss: Callable[[Any], Any] | None
    takes: tuple[str, ...]

    @property
    def is_module(self) -> bool:
        """Whether there are parameters to convert, copy and differentiate by."""
        import torch

        return isinstance(self.model, torch.nn.Module)

    @property
    def dtype(self) -> str:
        """Return the dtype of the first floating parameter or input; empty where there is none."""
        return next((str(tensor.dtype)[6:] for tensor in self._tensors() if tensor.is_floating_point()), "")

    @property
    def device(self) -> Any:
        """Return where the model is, or its inputs, else the processor."""
        import torch

        return next((tensor.device for tensor in self._tensors()), torch.device("cpu"))

    def _tensors(self) -> list[Any]:
        parameters = self.model.parameters() if self.is_module else ()
        return [*parameters, *leaves((self.args, self.kwargs))]


def load(target: str) -> Callable[..., Any]:
    """Return the function that ``module:function`` or ``file.py:function`` names.

    Raises TargetError: it cannot be imported, is not there, or cannot be called.
    """
    where, _, name = target.rpartition(":")
    try:
        module = _import_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    except ModuleNotFoundError as error:
        hint = "" if where.endswith(".py") else "run in the folder of the module, or name its file.py"
        raise TargetError(f"cannot be imported: {error}", hint) from error
    except BaseException as error:
        raise TargetError(f"cannot be imported: {describe_error(error)}") from error
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            names = [
                key
                for key, value in vars(module).items()
                if inspect.isfunction(value) and value.__module__ == module.__name__ and not key.startswith("_")
            ]
            hint = f"it has {', '.join(names[:8])}" if names else ""
            raise TargetError(f"has no {name!r}", hint)
        found = getattr(found, part)
    if not callable(found):
        raise TargetError(
            f"expected a function, found {type(found).__name__}", "a function that returns (model, inputs)"
        )
    return found


def _import_file(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # as for a script: its neighbours can be imported, dataclasses find their module
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def sources(target: str, function: Callable[..., Any]) -> dict[str, str]:
    """Return a hash of the file of each loaded module that is the user's, and of those that the target is from.

    By name: a checkout that was moved is the same program, another in its place is not.
    """
    where = target.rpartition(":")[0]
    asked = (Path(where).stem if where.endswith(".py") else where, getattr(function, "__module__", None))
    # libraries are known by their versions; what a compiler writes follows from both
    compiled = Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR", os.devnull)).resolve()
    standard, ours = Path(sysconfig.get_path("stdlib")).resolve(), Path(__file__).resolve().parents[2]
    out = {}
    for name, module in sorted(sys.modules.items()):
        # what is loaded when it is first asked for stays unloaded
        file = getattr(module, "__dict__", {}).get("__file__")
        if not isinstance(file, str):
            continue
        path = Path(file).resolve()
        library = path.is_relative_to(standard) or path.is_relative_to(ours) or not INSTALLED.isdisjoint(path.parts)
        if name in asked or not (library or path.is_relative_to(compiled)):
            out[name] = _file_hash(path)
    return out


def _file_hash(path: Path) -> str:
    """Return a hash of what a file holds; empty where it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def describe_error(error: BaseException) -> str:
    """Return type and first line of an exception, and where it was raised."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # "backend='x' raised:" and what it raised
    while len(lines) > 1 and lines[0].endswith(":"):
        lines[:2] = [f"{lines[0]} {lines[1]}"]
    trail = error.__traceback__
    while trail is not None and trail.tb_next is not None:
        trail = trail.tb_next
    where = ""
    if trail is not None:
        where = f" - at {Path(trail.tb_frame.f_code.co_filename).name}:{trail.tb_lineno}"
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}{where}"


def build(function: Callable[..., Any], *, batch_size: int | None, dtype: str, device: str, train: bool) -> Case:
    """Call the target, with the same random numbers in every process, and convert what it returns.

    Raises TargetError: it fails, or returns something else.
    """
    import torch

    asked: dict[str, Any] = {}
    takes = _takes(function)
    if batch_size is not None:
        if "batch_size" not in takes:
            raise TargetError(
                "takes no batch_size, so batch sizes cannot be compared",
                "give the function a parameter batch_size, or leave --batch-sizes out",
            )
        asked["batch_size"] = batch_size
    if dtype and "dtype" in takes:
        asked["dtype"] = getattr(torch, dtype)
    if device and "device" in takes:
        asked["device"] = torch.device(device)
    _seed(SEED)
    try:
        case = _case(function(**asked), takes)
        if case.is_module:
            case.model.train(train)
        if device or dtype:
            cast(case, dtype, device)
    except TargetError:
        raise
    except BaseException as error:
        raise TargetError(f"failed: {describe_error(error)}", _device_hint(str(error))) from error
    if train and not case.is_module:
        raise TargetError("returned a plain function: training needs (model, inputs)")
    return case


def _seed(seed: int) -> None:
    import torch

    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)


def _device_hint(text: str) -> str:
    if "CUDA" in text or "NVIDIA" in text:
        return "it needs a CUDA device, which is not here: give it a parameter device"
    return ""


def _takes(function: Callable[..., Any]) -> tuple[str, ...]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ()
    fixed = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    for parameter in parameters:
        if parameter.name not in ASKED and parameter.default is parameter.empty and parameter.kind not in fixed:
            raise TargetError(
                f"needs an argument {parameter.name!r}, and may take {', '.join(ASKED)} alone",
                "give it a default, or wrap it in a function of your own",
            )
    return tuple(parameter.name for parameter in parameters if parameter.name in ASKED)


def _case(returned: Any, takes: tuple[str, ...]) -> Case:
    import torch

    expected = "expected (model, inputs), (model, inputs, loss) or a function without arguments"
    if isinstance(returned, tuple) and len(returned) in (2, 3) and callable(returned[0]):
        model, inputs, *rest = returned
        if rest and not callable(rest[0]):
            raise TargetError(f"{expected}; found a loss of type {type(rest[0]).__name__}")
        args, kwargs = _arguments(inputs, expected)
        return Case(model, args, kwargs, rest[0] if rest else None, takes)
    if isinstance(returned, torch.nn.Module):
        raise TargetError(f"{expected}; found a model without inputs", "return model, inputs")
    if callable(returned) and not isinstance(returned, type):
        return Case(returned, (), {}, None, takes)
    raise TargetError(f"{expected}; found {type(returned).__name__}")


def _arguments(inputs: Any, expected: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    import torch

    if isinstance(inputs, torch.Tensor):
        return (inputs,), {}
    if isinstance(inputs, Mapping):
        return (), {str(name): value for name, value in inputs.items()}
    if isinstance(inputs, tuple | list):
        return tuple(inputs), {}
    raise TargetError(
        f"{expected}; found inputs of type {type(inputs).__name__}",
        "a tensor, a tuple of arguments or a dict of named ones",
    )


def cast(case: Case, dtype: str, device: str) -> None:
    """Convert the model's and inputs' floating tensors, and move all of them; empty changes not."""
    import torch

    kind = getattr(torch, dtype) if dtype else None
    place = torch.device(device) if device else None
    if case.is_module:
        case.model.to(device=place, dtype=kind)
    elif dtype:
        raise TargetError(
            "is a plain function, which cannot be converted to a dtype",
            "give it a parameter dtype, or leave --dtypes out",
        )

    def move(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(device=place, dtype=kind if value.is_floating_point() else None)
        if isinstance(value, Mapping):
            return {name: move(part) for name, part in value.items()}
        if isinstance(value, tuple | list):
            return getattr(value, "_make", type(value))(map(move, value))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            moved = copy.copy(value)  # its __init__ may ask for something else
            for field in dataclasses.fields(value):
                object.__setattr__(moved, field.name, move(getattr(value, field.name)))
            return moved
        return value

    case.args = move(case.args)
    case.kwargs = move(case.kwargs)


def leaves(value: Any) -> list[Any]:
    """Return the tensors inside tuples, lists, dicts and dataclasses, in order."""
    return [tensor for _, tensor in named_leaves(value)]


def named_leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the tensors inside a value, each with its place, such as ``logits`` or ``[0][1]``."""
    import torch

    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from named_leaves(part, f"{name}.{key}" if name else str(key))
    elif isinstance(value, tuple | list):
        for at, part in enumerate(value):
            yield from named_leaves(part, f"{name}[{at}]")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            part = getattr(value, field.name)
            yield from named_leaves(part, f"{name}.{field.name}" if name else field.name)


def floats(value: Any) -> list[Any]:
    """Return the floating tensors inside a value that gradients flow through."""
    return [tensor for tensor in leaves(value) if tensor.is_floating_point() and tensor.requires_grad]

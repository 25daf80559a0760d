"""What a call holds, padded to a bucket; what came out of it, cropped and compared."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import inspect
import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from torchtriage.compile.bucketing.declarations import Crop, Dims, Mask, rule_of
from torchtriage.core.errors import UsageError

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
_LEAVES = (Tensor, *_PLAIN)
_AS_DECLARED: Mapping[int, Any] = {}
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional ones, and those by name."""


def _walk(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what containers hold, with its path: tuples, lists, mappings, dataclasses."""
    if isinstance(value, _LEAVES):
        yield path, value
        return
    dot = f"{path}." if path else ""
    if isinstance(value, (tuple, list)):
        for at, part in enumerate(value):
            yield from _walk(part, f"{dot}{at}")
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _walk(part, f"{dot}{key}")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _walk(getattr(value, field.name), f"{dot}{field.name}")
    else:
        yield path, value


def _rebuilt(value: Any, leaves: Iterator[Any]) -> Any:
    """Return the same containers with other leaves, in the order of :func:`_walk`."""
    if isinstance(value, _LEAVES):
        return next(leaves)
    if isinstance(value, (tuple, list)):
        made = [_rebuilt(part, leaves) for part in value]
        if hasattr(value, "_fields"):
            return type(value)(*made)
        return made if type(value) is list else type(value)(made)
    if isinstance(value, Mapping):
        if type(value) is dict:
            return {key: _rebuilt(part, leaves) for key, part in value.items()}
        again = cast("Any", copy.copy(value))  # keeps the class: ModelOutput, OrderedDict ...
        for key, part in list(value.items()):
            again[key] = _rebuilt(part, leaves)
        return again
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        changed = {name: _rebuilt(getattr(value, name), leaves) for name in names}
        again = copy.copy(value)
        for name, part in changed.items():
            object.__setattr__(again, name, part)
        return again
    return next(leaves)


def tensors(value: Any) -> dict[str, Tensor]:
    """Return the tensors of an output by path."""
    return {path: leaf for path, leaf in _walk(value) if isinstance(leaf, Tensor)}


def opaque(value: Any) -> str | None:
    """Return a description of the first object that may hold tensors out of reach."""
    for path, leaf in _walk(value):
        if not isinstance(leaf, _LEAVES) and hasattr(leaf, "__dict__"):
            return f"output {path} is a {type(leaf).__name__}"
    return None


def inputs_of(example: Any) -> Arguments:
    """Return the arguments of an example: a tensor, a tuple of arguments, a dict of named ones."""
    if isinstance(example, Mapping):
        return (), {str(name): argument for name, argument in example.items()}
    if isinstance(example, tuple):
        return example, {}
    return (example,), {}


@dataclass(frozen=True)
class CallContext:
    """What a call is made under and a graph is compiled for."""

    training: bool
    grad: bool
    inference: bool
    autocast: tuple[tuple[str, torch.dtype], ...]

    @classmethod
    def now(cls, training: bool, devices: tuple[str, ...]) -> CallContext:
        """Return the context of this thread."""
        autocast = tuple(
            (device, torch.get_autocast_dtype(device)) for device in devices if torch.is_autocast_enabled(device)
        )
        return cls(training, torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast)

    @contextlib.contextmanager
    def entered(self, devices: tuple[str, ...]) -> Iterator[None]:
        """Make it this thread's context."""
        with contextlib.ExitStack() as stack:
            mode: AbstractContextManager[Any]
            mode = torch.inference_mode() if self.inference else torch.set_grad_enabled(self.grad)
            stack.enter_context(mode)
            dtypes = dict(self.autocast)
            for device in devices:
                dtype = dtypes.get(device)
                stack.enter_context(torch.autocast(device, dtype=dtype, enabled=dtype is not None))
            yield

    @property
    def coarse(self) -> torch.dtype | None:
        """The type that autocast computes in, None without."""
        return self.autocast[0][1] if self.autocast else None

    def unlike(self, other: CallContext) -> str:
        """Return in words how two contexts differ, empty where they do not."""
        words = (
            ("training mode", self.training, other.training),
            ("gradients", self.grad, other.grad),
            ("inference mode", self.inference, other.inference),
            ("autocast", bool(self.autocast), bool(other.autocast)),
        )
        return ", ".join(f"{what} {'on' if here else 'off'}" for what, here, there in words if here != there)


@dataclass(frozen=True)
class ModelCall:
    """One call, read.

    ``sizes`` : size of each axis. ``kind`` : what, beside sizes and context, a graph is compiled for. ``dims`` : by
    number of the leaf, its padded dimensions. ``hidden`` : path and type of an argument whose tensors cannot be
    padded, empty where there is none.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    paths: tuple[str, ...]
    leaves: tuple[Any, ...]
    dims: dict[int, tuple[tuple[int, str], ...]]
    sizes: dict[str, int]
    kind: tuple[Any, ...]
    devices: tuple[str, ...]
    hidden: str = ""


class Reader:
    """Reads calls of one model and pads them.

    Raises UsageError: a name is no parameter of ``forward``; of a call: sizes of one axis differ, a named input has
    too few dimensions, or no input of the call is padded.
    """

    def __init__(self, model: Any, pad: Mapping[str, Dims], fill: Mapping[str, Any], masks: Mapping[str, Mask]) -> None:
        self.pad, self.fill, self.masks = pad, fill, masks
        self.axes = tuple(dict.fromkeys(axis for dims in pad.values() for axis in dims.values()))
        self._model = model
        kinds = {name: parameter.kind for name, parameter in inspect.signature(model.forward).parameters.items()}
        kind_of = inspect.Parameter
        self._order = names = list(kinds)
        positional = (kind_of.POSITIONAL_ONLY, kind_of.POSITIONAL_OR_KEYWORD)
        self._positional = [name for name, kind in kinds.items() if kind in positional]
        has_no_names = {kind_of.POSITIONAL_ONLY, kind_of.VAR_POSITIONAL} & {*kinds.values()}
        self._names = [] if has_no_names else self._positional
        self._rest = next((name for name, kind in kinds.items() if kind is kind_of.VAR_POSITIONAL), "")
        if kind_of.VAR_KEYWORD not in kinds.values():
            for what, rules in (("pad", pad), ("fill", fill), ("mask", masks)):
                odd = next((name for name in rules if name and name.split(".")[0] not in names), None)
                if odd is not None:
                    raise UsageError(
                        f"{what}: forward has no parameter {odd.split('.')[0]!r:.60}",
                        hint=f"its parameters are {', '.join(names)}",
                    )

    def read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ModelCall:
        """Return what a call holds."""
        args, kwargs = self._one_form(args, kwargs)
        walked: list[tuple[str, Any]] = []
        for at, argument in enumerate(args):
            name = self._positional[at] if at < len(self._positional) else f"{self._rest}.{at - len(self._positional)}"
            walked += _walk(argument, name)
        walked += _walk(kwargs)
        paths, leaves = tuple(path for path, _ in walked), tuple(leaf for _, leaf in walked)
        dims: dict[int, tuple[tuple[int, str], ...]] = {}
        sizes: dict[str, int] = {}
        first: dict[str, tuple[str, int]] = {}
        kind: list[Any] = [len(args), paths]
        hidden, devices = "", []
        for at, (path, leaf) in enumerate(walked):
            if not isinstance(leaf, Tensor):
                if isinstance(leaf, _PLAIN):
                    kind.append((type(leaf), leaf))
                else:
                    hidden = hidden or f"{path} ({type(leaf).__name__})"
                continue
            devices.append(leaf.device.type)
            shape: list[Any] = list(leaf.shape)
            rule = self._dims(path, leaf)
            for dim, axis in rule:
                size = leaf.shape[dim]
                if sizes.setdefault(axis, size) != size:
                    other, its = first[axis]
                    raise UsageError(
                        f"{path} has {size} at dimension {dim} where {other} has {sizes[axis]} at"
                        f" dimension {its}: both are padded along {axis}",
                        hint=f'name what belongs together: pad={{"{other}": {{{its}: "{axis}"}}}}',
                    )
                first.setdefault(axis, (path, dim))
                shape[dim] = axis
            if rule:
                dims[at] = rule
            layout = leaf.stride() if not rule and leaf.layout is torch.strided else leaf.layout
            kind.append((leaf.dtype, leaf.device, tuple(shape), layout, leaf.requires_grad))
        if not sizes and not hidden:
            known = ", ".join(name for name in paths if name) or "nothing"
            raise UsageError(
                f"no input of this call is padded: it has {known:.200}",
                hint=f"pad names {', '.join(name or 'dimensions too high' for name in self.pad)}",
            )
        return ModelCall(args, kwargs, paths, leaves, dims, sizes, tuple(kind), tuple(sorted(set(devices))), hidden)

    def resized(self, call: ModelCall, sizes: Mapping[str, int] | None = None) -> ModelCall:
        """Return a copy of a call, at other sizes where they are given: cut short, or repeated.

        A vector of whole numbers whose greatest is the size of an axis holds lengths along it, and changes with it.
        """
        sizes = call.sizes if sizes is None else sizes
        leaves = list(call.leaves)
        for at, leaf in enumerate(leaves):
            if not isinstance(leaf, Tensor):
                continue
            made = leaf.detach()
            for dim, axis in call.dims.get(at, ()):
                size = sizes[axis]
                if size != made.shape[dim]:
                    where = torch.arange(size, device=leaf.device) % made.shape[dim]
                    made = made.index_select(dim, where)
            if made.ndim <= 1 and made.dtype in (torch.int32, torch.int64) and made.numel():
                along = {axis for _, axis in call.dims.get(at, ())}
                for axis, size in sizes.items():
                    if axis not in along and call.sizes[axis] == int(made.max()):
                        made = made.masked_fill(made == call.sizes[axis], size).clamp(max=size)
            leaves[at] = made.clone().requires_grad_(leaf.requires_grad)
        return self.read(*changed(call, leaves))

    def _one_form(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """Return arguments by name, in forward's order: one graph serves f(x) and f(x=x)."""
        names = self._names
        seen_by_hooks = self._model._forward_pre_hooks or self._model._forward_hooks
        if seen_by_hooks or len(args) > len(names) or not kwargs.keys().isdisjoint(names[: len(args)]):
            return args, kwargs
        named = {**dict(zip(names, args, strict=False)), **kwargs}
        known = {name: named[name] for name in self._order if name in named}
        return (), {**known, **{name: named[name] for name in sorted(named) if name not in known}}

    def _dims(self, path: str, leaf: Tensor) -> tuple[tuple[int, str], ...]:
        rule = rule_of(path, self.pad, None)
        # a mask has the dimensions of what it describes, unless it is named itself
        if path in self.masks and path not in self.pad:
            rule = rule_of(self.masks[path].of, self.pad, None)
            return tuple((dim, axis) for dim, axis in rule.items() if 0 <= dim < leaf.ndim)
        if rule is None:
            return ()
        dims = []
        for dim, axis in rule.items():
            if -leaf.ndim <= dim < leaf.ndim:
                dims.append((dim % leaf.ndim, axis))
            elif path in self.pad:
                raise UsageError(f"{path} has {leaf.ndim} dimensions; pad names dimension {dim} of it")
        return tuple(dims)

    def padded(self, call: ModelCall, bucket: Mapping[str, int], fills: Mapping[int, Any] = _AS_DECLARED) -> Arguments:
        """Return the arguments at the bucket's sizes, masks added; ``fills`` by number of the leaf go first."""
        leaves = list(call.leaves)
        for at, (path, leaf) in enumerate(zip(call.paths, call.leaves, strict=True)):
            if isinstance(leaf, Tensor):
                dims = {dim: bucket[axis] for dim, axis in call.dims.get(at, ())}
                value = self.masks[path].padding if path in self.masks else rule_of(path, self.fill, 0)
                leaves[at] = _padded(leaf, dims, fills.get(at, value))
        return self._with_masks(call, leaves, bucket)

    def plain(self, call: ModelCall) -> Arguments:
        """Return the arguments as they came, masks added where a caller left them out."""
        given = dict(zip(call.paths, call.leaves, strict=True))
        if all(given.get(name) is not None for name in self.masks):
            return call.args, call.kwargs
        return self._with_masks(call, list(call.leaves), call.sizes)

    def _with_masks(self, call: ModelCall, leaves: list[Any], sizes: Mapping[str, int]) -> Arguments:
        added = {}
        for name, mask in self.masks.items():
            if name not in call.paths:
                added[name] = self._mask(mask, call, sizes)
            elif call.leaves[at := call.paths.index(name)] is None:
                leaves[at] = self._mask(mask, call, sizes)
        args, kwargs = changed(call, leaves)
        return args, {**kwargs, **added}

    def _mask(self, mask: Mask, call: ModelCall, bucket: Mapping[str, int]) -> Tensor | None:
        places = (at for at in call.dims if not mask.of or f"{call.paths[at]}.".startswith(f"{mask.of}."))
        at = next(places, None)
        if at is None:
            return None
        like: Tensor = call.leaves[at]
        dims = dict(call.dims[at])
        full = list(like.shape[: max(dims) + 1])
        inside = tuple(map(slice, full))
        for dim, axis in dims.items():
            full[dim] = bucket[axis]
        dtype = {bool: torch.bool, int: torch.int64}.get(type(mask.real))
        if dtype is None:
            dtype = like.dtype if like.is_floating_point() else torch.get_default_dtype()
        made = torch.full(full, mask.padding, dtype=dtype, device=like.device)
        made[inside] = mask.real
        return made


def _padded(leaf: Tensor, dims: Mapping[int, int], value: Any) -> Tensor:
    more = {dim: size - leaf.shape[dim] for dim, size in dims.items() if size > leaf.shape[dim]}
    if more:
        amounts = [0] * (2 * (leaf.ndim - min(more)))
        for dim, amount in more.items():
            amounts[2 * (leaf.ndim - 1 - dim) + 1] = amount
        return torch.nn.functional.pad(leaf, amounts, value=value)
    # graphs are compiled for what padding makes: contiguous, of the mode the call is made in
    if leaf.is_inference() != torch.is_inference_mode_enabled():
        return leaf.clone()
    return leaf.contiguous() if dims else leaf


def changed(call: ModelCall, leaves: list[Any]) -> Arguments:
    """Return a call's arguments with other leaves."""
    fresh = iter(leaves)
    args = tuple(_rebuilt(argument, fresh) for argument in call.args)
    return args, _rebuilt(dict(call.kwargs), fresh)


def crop(out: Any, rules: Mapping[str, Crop], sizes: Mapping[str, int]) -> Any:
    """Return the output at the request's sizes; contiguous, as without padding."""
    leaves = []
    for path, leaf in _walk(out):
        if isinstance(leaf, Tensor):
            made = leaf
            for dim, size in (rule_of(path, rules, None) or {}).items():
                if not -leaf.ndim <= dim < leaf.ndim:
                    if path in rules:
                        raise UsageError(
                            f"crop: output {path or 'tensor'} has {leaf.ndim} dimensions, and none is number {dim}"
                        )
                    continue
                named = isinstance(size, str)
                wanted = sizes[size] if named else int(size(**{axis: sizes[axis] for axis in _axes_of(size)}))
                made = made.narrow(dim, 0, min(wanted, made.shape[dim]))
            leaves.append(made if made is leaf else made.contiguous())
        else:
            leaves.append(leaf)
    return _rebuilt(out, iter(leaves))


@functools.lru_cache(maxsize=256)
def _axes_of(size: Any) -> tuple[str, ...]:
    return tuple(inspect.signature(size).parameters)


def learn_crop(padded: Any, plain: Any, bucket: Mapping[str, int], sizes: Mapping[str, int]) -> dict[str, Crop]:
    """Return what to crop, from one output with padding and one without.

    Raises UsageError: a dimension that differs is not the size of an axis, or it may be one of two.
    """
    without = tensors(plain)
    rules: dict[str, Crop] = {}
    for path, leaf in tensors(padded).items():
        rules[path] = {}
        other = without.get(path)
        if other is None or other.ndim != leaf.ndim:
            continue  # not comparable, which the comparison says
        for dim, (now, wanted) in enumerate(zip(leaf.shape, other.shape, strict=True)):
            if now == wanted:
                continue
            fit = [axis for axis in sizes if (bucket[axis], sizes[axis]) == (now, wanted)]
            if len(fit) != 1:
                name = path or "the output"
                raise UsageError(
                    f"dimension {dim} of {name} is {now} with padding and {wanted} without, at"
                    f" {_sizes_text(bucket)} for {_sizes_text(sizes)}: that is no axis of its own",
                    hint=f"say what it is: crop={{{path!r}: {{{dim}: lambda {next(iter(sizes))}: ...}}}}",
                )
            rules[path] = {**rules[path], dim: fit[0]}
    return rules


def _sizes_text(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{axis} {size}" for axis, size in sizes.items())


def difference(
    out: Any, plain: Any, coarse: torch.dtype | None = None, *, what: str = "output", scale: float = 0.0
) -> str:
    """Return the first output that is not what it is without padding, and how; empty if none.

    Floating point: beyond ``sqrt(eps) * (|value| + rms)`` of its type, or of ``coarse`` where that is less precise:
    rounding stays far below, padding that counts far above. Others: any change. ``scale`` : an rms to take at least.
    """
    for (path, now), (other, wanted) in zip(_walk(out), _walk(plain), strict=False):
        number = path == other and isinstance(now, _PLAIN) and isinstance(wanted, _PLAIN)
        if number and isinstance(now, float) and isinstance(wanted, float):  # of a tensor, as a rule
            number = not math.isclose(now, wanted, rel_tol=math.sqrt(torch.finfo(torch.float32).eps))
        if number and now != wanted and wanted == wanted:  # NaN is like NaN
            return f"{what} {path} is {now!r:.60} with padding, {wanted!r:.60} without"
    left, right = tensors(out), tensors(plain)
    if left.keys() != right.keys():
        return f"outputs are {', '.join(left) or 'none'} with padding, {', '.join(right)} without"
    for path, value in right.items():
        name = f"{what} {path}" if path else f"the {what}"
        other = left[path]
        if other.shape != value.shape:
            return f"{name} has shape {tuple(other.shape)} after cropping, {tuple(value.shape)} without padding"
        if other.dtype != value.dtype:
            return f"{name} is {other.dtype} with padding, {value.dtype} without"
        if not value.numel():
            continue
        if not (value.is_floating_point() or value.is_complex()):
            n_off = int((other != value).sum())
            if n_off:
                return f"{name} differs in {n_off} of {value.numel()} values"
            continue
        eps = max(torch.finfo(dtype).eps for dtype in (value.dtype, coarse or value.dtype))
        wide = torch.complex128 if value.is_complex() else torch.float64
        exact, near = value.detach().to(wide), other.detach().to(wide)
        finite = torch.isfinite(exact)
        rms = float(exact[finite].abs().square().mean().sqrt()) if bool(finite.any()) else 0.0
        same = (exact == near) | (torch.isnan(exact) & torch.isnan(near))
        close = (near - exact).abs() <= math.sqrt(eps) * (exact.abs() + max(rms, scale))
        off = ~(same | (finite & close))
        n_off = int(off.sum())
        if n_off:
            worst = float((near - exact).abs()[off].nan_to_num(math.inf).max())
            return (
                f"{name} differs in {n_off} of {value.numel()} values, by up to {worst:.3g} where"
                f" they are about {rms:.3g}"
            )
    return ""

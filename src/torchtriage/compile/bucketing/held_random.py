"""Random numbers held still: each is a function of its place, so that a run with padding can be compared.

Dropout draws other numbers when a tensor is larger, and no seed helps. Here the number of a place depends on its
indices alone: real places get the same ones with padding and without, and padded places get as many chances to be
drawn as others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten
_STEPS = (0.6180339887, 0.7548776662, 0.4142135624, 0.7320508076, 0.2360679775, 0.3166247904, 0.6055512755)
"""Irrational: neighbours along no dimension are alike."""


def _unit(like: torch.Tensor) -> torch.Tensor:
    """Return numbers between 0 and 1, each by its place."""
    made = torch.full(like.shape, 0.37, dtype=torch.float64, device=like.device)
    for dim, size in enumerate(like.shape):
        steps = torch.arange(size, dtype=torch.float64, device=like.device) * _STEPS[dim % len(_STEPS)]
        made += steps.view([-1 if at == dim else 1 for at in range(like.ndim)])
    return made.remainder(1.0).clamp(1e-6, 1 - 1e-6)


def _standard(like: torch.Tensor) -> torch.Tensor:
    """Return numbers of mean 0 and deviation 1."""
    return (_unit(like) - 0.5) * math.sqrt(12)


class HeldRandom(TorchDispatchMode):  # type: ignore[misc]
    """Inside of it, this thread's random numbers are functions of their places.

    What is drawn in other ways (inside of a fused kernel, by NumPy) still varies. ``drew`` : some were drawn.
    """

    drew = False

    def __init__(self) -> None:
        super().__init__()
        self.looked_up: list[tuple[torch.Tensor, int]] = []
        """Indices into an embedding, and how many rows it has."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answer what draws numbers here, and let the rest pass."""
        kwargs = kwargs or {}
        held: Any = _HELD.get(func.overloadpacket)
        if func.overloadpacket is _aten.embedding:
            self.looked_up.append((args[1], args[0].shape[0]))
        if held is None:
            return func(*args, **kwargs)
        self.drew = True
        return held(func, *args, **kwargs)


def _filled(values: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return what makes a tensor as torch does and fills it with numbers by place."""

    def held(func: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        out = func(*args, **kwargs)
        return out.copy_(values(out))

    return held


def _uniform_between(func: Any, x: torch.Tensor, low: float = 0.0, high: float = 1.0, **_: Any) -> torch.Tensor:
    out = x if func.overloadpacket is _aten.uniform_ else torch.empty_like(x)
    return out.copy_(low + _unit(x) * (high - low))


def _normal_around(_func: Any, x: torch.Tensor, mean: float = 0.0, std: float = 1.0, **_: Any) -> torch.Tensor:
    return x.copy_(mean + _standard(x) * std)


def _exponential(_func: Any, x: torch.Tensor, rate: float = 1.0, **_: Any) -> torch.Tensor:
    return x.copy_(-_unit(x).log() / rate)


def _bernoulli(func: Any, x: torch.Tensor, p: Any = None, **_: Any) -> torch.Tensor:
    in_place = func.overloadpacket is _aten.bernoulli_
    if p is None:
        p = 0.5 if in_place else x
    return (x if in_place else torch.empty_like(x)).copy_(_unit(x) < p)


def _dropout(func: Any, x: torch.Tensor, p: float, train: bool | None) -> Any:
    if train is False:
        return func(x, p, train)
    kept = _unit(x) >= p
    return x * kept / max(1 - p, 1e-12), kept


def _integers(func: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    out = func(*args, **kwargs)
    bounds = [arg for arg in args if isinstance(arg, int)]
    low, high = (0, bounds[0]) if len(bounds) == 1 else bounds[:2]
    return out.copy_((low + _unit(out) * (high - low)).floor())


def _chosen(func: Any, p: torch.Tensor, n: int, replacement: bool = False, **kwargs: Any) -> torch.Tensor:
    if n > p.shape[-1]:
        return func(p, n, replacement, **kwargs)
    return (p.double().log() - (-_unit(p).log()).log()).topk(n, -1).indices


_HELD = {
    _aten.rand: _filled(_unit),
    _aten.rand_like: _filled(_unit),
    _aten.randn: _filled(_standard),
    _aten.randn_like: _filled(_standard),
    _aten.uniform_: _uniform_between,
    _aten.uniform: _uniform_between,
    _aten.normal_: _normal_around,
    _aten.exponential_: _exponential,
    _aten.bernoulli: _bernoulli,
    _aten.bernoulli_: _bernoulli,
    _aten.native_dropout: _dropout,
    _aten.randint: _integers,
    _aten.randint_like: _integers,
    _aten.randperm: _filled(lambda like: _unit(like).argsort()),
    _aten.multinomial: _chosen,
}

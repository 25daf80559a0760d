"""Which dimensions of which inputs and outputs have a size that varies, as the user declares it.

Names are those of ``forward``'s parameters, with dots into containers: ``x``, ``batch.ids``, ``pair.0``. A name
stands for all tensors below it, ``""`` for all tensors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchtriage.compile.bucketing.planning import AXIS
from torchtriage.core.errors import UsageError

Dims = Mapping[int, str]
"""Axis of each dimension that varies: ``{1: "seq"}``."""
Crop = Mapping[int, "str | Callable[..., int]"]
"""What each dimension is cropped to: an axis, or a function of axes by name."""


@dataclass(frozen=True)
class Mask:
    """An input that says which places are real; made where the caller gives none.

    ``real``, ``padding`` : its values; their type is its dtype (bool, int64, or the input's floating point). ``of``
    : the input it describes, the first padded one by default: it has that input's dimensions up to the last padded
    one. One that a caller gives is padded with ``padding``.
    """

    real: Any = 1
    padding: Any = 0
    of: str = ""


def read_pad(declared: Any) -> dict[str, Dims]:
    """Return the padded dimensions by input name."""
    if declared is None:
        raise UsageError(
            "pad: expected the dimensions whose size varies, found none",
            hint='pad=1 is dimension 1 of every tensor input, pad={"input_ids": 1} of one',
        )
    read: dict[str, Dims] = {}
    for name, rule in _rules(declared, "pad").items():
        dims = {rule: AXIS} if _is_int(rule) else rule
        if not (isinstance(dims, Mapping) and dims) or not all(
            _is_int(dim) and isinstance(axis, str) and axis for dim, axis in dims.items()
        ):
            raise UsageError(
                f"pad: expected a dimension or dimensions with the names of their axes for"
                f" {name or 'all inputs'}, found {rule!r:.80}",
                hint='pad=1, or pad={"input_ids": {1: "seq"}}',
            )
        read[name] = dict(dims)
    if not read:
        raise UsageError("pad: expected at least one dimension", hint="pad=1")
    return read


def read_crop(declared: Any, axes: Sequence[str]) -> dict[str, Crop] | None:
    """Return the cropped dimensions by output name; None where they are to be found out."""
    if declared is None:
        return None
    read: dict[str, Crop] = {}
    for name, rule in _rules(declared, "crop").items():
        if _is_int(rule) and len(axes) > 1:
            raise UsageError(
                f"crop: expected the axis of dimension {rule} of {name or 'all outputs'}: there are {', '.join(axes)}",
                hint=f'crop={{{name!r}: {{{rule}: "{axes[0]}"}}}}',
            )
        dims = {rule: axes[0]} if _is_int(rule) else {} if rule is None else rule
        if not isinstance(dims, Mapping) or not all(_is_int(dim) for dim in dims):
            raise UsageError(
                f"crop: expected a dimension or dimensions with their axes for"
                f" {name or 'all outputs'}, found {rule!r:.80}",
                hint='crop=1, or crop={"logits": {1: "seq"}}',
            )
        for dim, size in dims.items():
            wanted = [size] if isinstance(size, str) else _parameters(size, name, dim)
            unknown = [axis_name for axis_name in wanted if axis_name not in axes]
            if unknown:
                raise UsageError(
                    f"crop: {name or 'output'} names {unknown[0]!r:.60}, which pad does not: axes are {', '.join(axes)}"
                )
        read[name] = dict(dims)
    return read


def read_fill(declared: Any, known: Sequence[str]) -> dict[str, Any]:
    """Return the padding's value by input name; 0 where none is given."""
    rules = declared if isinstance(declared, Mapping) else {"": declared}
    for name, value in rules.items():
        if not isinstance(value, (int, float, bool)):
            raise UsageError(f"fill: expected a number for {name or 'all'}, found {value!r:.60}")
        if name and "" not in known and rule_of(name, dict.fromkeys(known)) is _NOTHING:
            raise UsageError(
                f"fill: {name!r:.60} is not padded; padded are {', '.join(known)}", hint=f"pad={{{name!r}: 1, ...}}"
            )
    return dict(rules)


def read_masks(declared: Any, pad: Mapping[str, Dims]) -> dict[str, Mask]:
    """Return the masks by input name."""
    if declared is None:
        return {}
    rules = {declared: Mask()} if isinstance(declared, str) else declared
    if not isinstance(rules, Mapping):
        raise UsageError(
            f"mask: expected the name of an input, found {declared!r:.60}",
            hint='mask="attention_mask", or mask={"key_padding_mask": Mask(False, True)}',
        )
    read = {}
    for name, mask in rules.items():
        rule = mask if isinstance(mask, Mask) else None
        if isinstance(mask, tuple) and len(mask) == 2:
            rule = Mask(*mask)
        if rule is None or type(rule.real) is not type(rule.padding):
            raise UsageError(
                f"mask: expected the values of real places and of padding, of one type, for"
                f" {name!r:.60}, found {mask!r:.80}",
                hint="Mask(True, False), Mask(1, 0) or Mask(0.0, float('-inf'))",
            )
        of = rule.of or next((other for other in pad if other != name), "")
        if not of and "" not in pad:
            raise UsageError(f"mask: {name!r:.60} describes no padded input", hint="Mask(of='x')")
        if rule.of and rule.of not in pad and "" not in pad:
            raise UsageError(f"mask: {rule.of!r:.60} is not padded; padded are {', '.join(pad)}")
        read[name] = Mask(rule.real, rule.padding, of)
    return read


_NOTHING: Any = object()


def rule_of(path: str, rules: Mapping[str, Any], default: Any = _NOTHING) -> Any:
    """Return the rule of the longest name that is this path or stands above it."""
    name = path
    while name not in rules:
        if not name:
            return default
        name = name.rpartition(".")[0]
    return rules[name]


def _rules(declared: Any, what: str) -> Mapping[str, Any]:
    if isinstance(declared, Mapping) and not all(_is_int(key) for key in declared):
        odd = next((key for key in declared if not isinstance(key, str)), None)
        if odd is not None:
            raise UsageError(f"{what}: expected names of tensors, found {odd!r:.60}")
        return declared
    return {"": declared}


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _parameters(size: Any, name: str, dim: int) -> list[str]:
    if not callable(size):
        raise UsageError(
            f"crop: expected an axis or a function of axes for dimension {dim} of"
            f" {name or 'the output'}, found {size!r:.60}",
            hint="crop={2: lambda size: size // 2}",
        )
    return list(inspect.signature(size).parameters)

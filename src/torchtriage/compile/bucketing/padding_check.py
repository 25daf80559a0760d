"""One bucket, before it is used: what to crop, and whether any output depends on the padding."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from torchtriage.compile.bucketing import tensors
from torchtriage.compile.bucketing.declarations import Crop
from torchtriage.compile.bucketing.tensors import CallContext, ModelCall, Reader
from torchtriage.core.errors import UsageError

__all__ = ["HINT", "PaddingVerdict", "examine", "wait_for"]

HINT = "mask the padding inside of the model (mask=), or fill it with a value that does not count (fill=)"


@dataclass(frozen=True)
class PaddingVerdict:
    """What was found out about a bucket.

    ``crop`` : what to cut off. ``checked`` : the answers are those without padding. ``off`` : why padding must not
    be used, with a ``hint``. ``note`` : why it could not be checked. ``eager_s`` : of a padded run of the model, 0
    where there was none.
    """

    crop: Mapping[str, Crop] = field(default_factory=dict)
    checked: bool = False
    off: str = ""
    hint: str = ""
    note: str = ""
    eager_s: float = 0.0


def examine(
    model: Any,
    reader: Reader,
    call: ModelCall,
    bucket: Mapping[str, int],
    context: CallContext,
    *,
    crop: Mapping[str, Crop] | None,
    check: bool,
) -> PaddingVerdict:
    """Run the model with and without padding and compare.

    ``crop`` : as declared, None to find it out. A call that fills the bucket is cut by one: without padding there
    is nothing to see.
    """
    if crop is not None and not check:
        return PaddingVerdict(crop)
    small = _below(reader, call, bucket)
    if small is None:  # a bucket of one is never padded
        return PaddingVerdict(crop or {}, checked=check)
    args, kwargs = reader.plain(small)
    before = _versions(small)
    plain = model(*args, **kwargs)
    written = before != _versions(small)
    padded_args, padded_kwargs = reader.padded(small, bucket)
    begun = time.perf_counter()
    padded = model(*padded_args, **padded_kwargs)
    wait_for(call)
    eager_s = time.perf_counter() - begun
    if written:
        return PaddingVerdict(off="the model writes into its input, and padding copies inputs")
    hidden = tensors.opaque(plain)
    if hidden is not None:
        return PaddingVerdict(off=f"{hidden}: it can neither be cropped nor compared")
    try:
        rules = crop
        if rules is None:
            rules = tensors.learn_crop(padded, plain, bucket, small.sizes)
        cropped = tensors.crop(padded, rules, small.sizes)
    except UsageError as error:
        return PaddingVerdict(off=error.message, hint=error.hint)
    if not check:
        return PaddingVerdict(rules, eager_s=eager_s)
    off = tensors.difference(cropped, plain, context.coarse)
    if off and tensors.difference(model(*args, **kwargs), plain, context.coarse):
        return PaddingVerdict(rules, note="answers differ from call to call", eager_s=eager_s)
    if off:
        return PaddingVerdict(off=f"{off}: it depends on the padding", hint=HINT)
    return PaddingVerdict(rules, checked=True, eager_s=eager_s)


def wait_for(call: ModelCall) -> None:
    """Wait for devices that work on their own."""
    for device in call.devices:
        getattr(getattr(torch, device, None), "synchronize", lambda: None)()


def _below(reader: Reader, call: ModelCall, bucket: Mapping[str, int]) -> ModelCall | None:
    """Return the call at sizes below the bucket's, no two axes alike; None if that is empty."""
    sizes: dict[str, int] = {}
    for axis, limit in bucket.items():
        size = min(call.sizes[axis], limit - 1)
        while size > 1 and any((bucket[earlier], its) == (limit, size) for earlier, its in sizes.items()):
            size -= 1
        sizes[axis] = max(size, 1)
    if all(sizes[axis] == limit for axis, limit in bucket.items()):
        return None
    return reader.read(*tensors.resized(call, sizes))


def _versions(call: ModelCall) -> list[int]:
    inputs = (leaf for leaf in call.leaves if isinstance(leaf, torch.Tensor))
    return [leaf._version for leaf in inputs if not leaf.is_inference()]

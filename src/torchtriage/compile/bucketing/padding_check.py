"""One bucket, before it is used: what to crop, and whether any output depends on the padding."""

from __future__ import annotations

import contextlib
import copy
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from torchtriage.compile.bucketing import tensors
from torchtriage.compile.bucketing.declarations import Crop, rule_of
from torchtriage.compile.bucketing.held_random import HeldRandom
from torchtriage.compile.bucketing.probes import data_of, decisive, draws, probes
from torchtriage.compile.bucketing.tensors import Arguments, CallContext, ModelCall, Reader
from torchtriage.core.errors import UsageError

HINT = "mask the padding inside of the model (mask=), or fill it with a value that does not count (fill=)"
BATCH_HINT = "layers that take statistics of a batch count the padding: in training, keep them in evaluation mode"
_N_DRAWS = 12
_LARGE = 1 << 20
"""Elements of a buffer that is not copied: quantised weights are buffers, too."""


@dataclass(frozen=True)
class PaddingVerdict:
    """What was found out about a bucket.

    ``crop`` : what to cut off. ``checked`` : the answers are those without padding. ``off`` : why padding must not
    be used, with a ``hint``. ``is_random`` : answers are, and were compared with random numbers held. ``eager_s`` : of
    a padded run of the model, 0 where there was none.
    """

    crop: Mapping[str, Crop] = field(default_factory=dict)
    checked: bool = False
    off: str = ""
    hint: str = ""
    is_random: bool = False
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
    least: Mapping[str, int],
) -> PaddingVerdict:
    """Run the model with and without padding and compare: outputs, gradients, and what a call leaves in buffers.

    The mode is the call's own, and runs are on copies that share parameters. ``crop`` : as declared, None to find it
    out. A call that fills the bucket is cut by one: without padding there is nothing to see. ``least`` : the smallest
    size that the bucket is meant for.
    """
    if crop is not None and not check:
        return PaddingVerdict(crop)
    small = _below(reader, call, bucket)
    if small is None:  # a bucket of one is never padded
        return PaddingVerdict(crop or {}, checked=check)
    trial = Trial(model, reader, context)
    before = _versions(small)
    plain = trial.run(reader.plain(small))
    if before != _versions(small):
        return PaddingVerdict(off="the model writes into its input, and padding copies inputs")
    if trial.written():
        return PaddingVerdict(
            off=f"a call writes into buffer {trial.written()}, which is too large for a trial on copies"
        )
    hidden = tensors.opaque(plain.out)
    if hidden is not None:
        return PaddingVerdict(off=f"{hidden}: it can neither be cropped nor compared")
    if check:
        trial.hold_random(small, plain)
        if trial.varies:
            return PaddingVerdict(
                off=f"{trial.varies}, so padding cannot be checked", hint='check="never" if it is correct'
            )
        if _is_all_padding(reader, small):
            hint = "give an example with real values"
            return PaddingVerdict(
                off="every value of the example equals the padding value: a check would show nothing", hint=hint
            )
        plain = trial.run(reader.plain(small)) if trial.held else plain
    padded_args = reader.padded(small, bucket)
    begun = time.perf_counter()
    padded = trial.run(padded_args)
    wait_for(call)
    eager_s = time.perf_counter() - begun
    try:
        rules = tensors.learn_crop(padded.out, plain.out, bucket, small.sizes) if crop is None else crop
        if not check:
            return PaddingVerdict(rules, eager_s=eager_s)
        off = trial.unlike(plain, padded, rules, small)
        # whole numbers hide most of what they are made of: a place that wins, a threshold
        outs = tensors.tensors(plain.out).values()
        is_whole = not any(out.is_floating_point() and bool((out != out.round()).any()) for out in outs)
        n_draws = _N_DRAWS * (8 if is_whole else 1)
        off = off or _off_elsewhere(trial, reader, call, bucket, rules, least, n_draws)
    except UsageError as error:
        return PaddingVerdict(off=error.message, hint=error.hint)
    if off:
        hint = BATCH_HINT if "buffer" in off or (context.training and _counts_batches(model)) else HINT
        return PaddingVerdict(off=f"{off}: it depends on the padding", hint=hint)
    return PaddingVerdict(rules, checked=True, eager_s=eager_s, is_random=trial.held)


def call_is_off(
    model: Any,
    reader: Reader,
    call: ModelCall,
    bucket: Mapping[str, int],
    crop: Mapping[str, Crop],
    context: CallContext,
) -> tuple[str, Any]:
    """Return how this very call differs with padding, and its answer without where that is no matter of chance."""
    own = reader.resized(call)
    trial = Trial(model, reader, context)
    plain = trial.run(reader.plain(own))
    trial.hold_random(own, plain)
    if trial.varies:
        return trial.varies, None
    answer = plain.out
    plain = trial.run(reader.plain(own)) if trial.held else plain
    off = trial.unlike(plain, trial.run(reader.padded(own, bucket)), crop, own)
    return off, None if trial.held else answer


def _off_elsewhere(
    trial: Trial,
    reader: Reader,
    call: ModelCall,
    bucket: Mapping[str, int],
    rules: Mapping[str, Crop],
    least: Mapping[str, int],
    n_draws: int,
) -> str:
    """Compare with other values, fills and sizes than the call's.

    Where another fill changes answers, the declared one may still be right: zeros for a convolution, a weight of 0. It
    has to hold for many values then.
    """

    def off(probe: ModelCall, fills: Mapping[int, Any] = {}) -> str | None:
        try:
            plain = trial.run(reader.plain(probe))
        except Exception:  # the model takes no such values or sizes
            return None
        return trial.unlike(plain, trial.run(reader.padded(probe, bucket, fills)), rules, probe)

    found, fill_counts = [], False
    for probe, fills in probes(reader, call, bucket, least, trial.rows):
        found.append(off(probe, fills))
        if found[-1] and not fills:
            return found[-1]
        if found[-1]:
            some = decisive(reader, probe, fills)
            if some and (some == fills or off(probe, some)):
                return f"filled with other values, {found[-1]}"
            fill_counts = True
    for probe in draws(reader, call, bucket, least, trial.rows, n_draws * (2 if fill_counts else 1)):
        found.append(off(probe))
        if found[-1]:
            return found[-1]
    if all(answer is None for answer in found):
        return "the model fails for every other size and value that was tried"
    return ""


@dataclass(frozen=True)
class Answer:
    """What came out of one run, and the copy of the model that was run."""

    model: Any
    out: Any


class Trial:
    """Runs of one model, each from the same state, in the mode and context of a call.

    ``held`` : random numbers are functions of their places. ``varies`` : what differs between runs even so. ``rows`` :
    by number of a leaf that holds indices into an embedding, how many there are.
    """

    def __init__(self, model: Any, reader: Reader, context: CallContext) -> None:
        self._model, self._reader, self._context = model, reader, context
        buffers = dict(model.named_buffers())
        large = {
            name: buffer for name, buffer in buffers.items() if buffer.numel() > _LARGE and not buffer.is_inference()
        }
        self._large = {name: (buffer, buffer._version) for name, buffer in large.items()}
        self._shared = {id(tensor): tensor for tensor in (*model.parameters(), *large.values())}
        self._shapes = {name: buffer.shape for name, buffer in buffers.items()}
        self.held, self.varies = False, ""
        self.rows: dict[int, int] = {}

    def run(self, arguments: Arguments) -> Answer:
        """Run a copy of the model."""
        args, kwargs = arguments
        model = self._copy()
        with HeldRandom() if self.held else contextlib.nullcontext():
            return Answer(model, model(*args, **kwargs))

    def _copy(self) -> Any:
        """Return the model with parameters and large buffers shared: what a run changes are others."""
        try:
            return copy.deepcopy(self._model, dict(self._shared))
        except Exception:
            if self._context.training:
                raise
            return self._model

    def written(self) -> str:
        """Return the first of the large buffers that a run wrote into."""
        return next((name for name, (buffer, version) in self._large.items() if buffer._version != version), "")

    def hold_random(self, call: ModelCall, plain: Answer) -> None:
        """Hold random numbers if the model draws any, and find out whether answers differ from call to call even so."""
        model, (args, kwargs) = self._copy(), self._reader.plain(call)
        with HeldRandom() as held:
            out = model(*args, **kwargs)
        self.held = held.drew
        for at in call.dims:
            found = [n for indices, n in held.looked_up if _is_same(indices, call.leaves[at])]
            if found:
                self.rows[at] = min(found)
        again = self.run(self._reader.plain(call)).out if self.held else plain.out
        if tensors.difference(again, out, self._context.coarse):
            self.varies = "answers differ from call to call"

    def unlike(self, plain: Answer, padded: Answer, rules: Mapping[str, Crop], call: ModelCall) -> str:
        """Return how the answers differ after cropping, empty where they do not."""
        coarse = self._context.coarse
        left, kept = self._left_in(plain.model), self._left_in(padded.model)
        both = left.keys() & kept.keys()  # one that has grown with the size is a cache
        kept, left = {name: kept[name] for name in both}, {name: left[name] for name in both}
        out = tensors.crop(padded.out, rules, call.sizes)
        off = tensors.difference(kept, left, coarse, what="buffer") or tensors.difference(out, plain.out, coarse)
        if off or not self._context.grad or self._context.inference:
            return off
        with HeldRandom() if self.held else contextlib.nullcontext():
            wanted, found = self._gradients(plain.out, call), self._gradients(out, call)
        squares = [float(tensor.abs().double().square().sum()) for tensor in wanted.values()]
        n_values = sum(tensor.numel() for tensor in wanted.values())
        # where one parameter's gradient is 0, rounding is measured by the others
        scale = math.sqrt(math.fsum(squares) / n_values) if n_values else 0.0
        return tensors.difference(
            found, wanted, coarse, what="gradient of", scale=scale if math.isfinite(scale) else 0.0
        )

    def _left_in(self, model: Any) -> dict[str, torch.Tensor]:
        """Return the buffers, of the size that they had before."""
        named = dict(model.named_buffers())
        return {
            name: named[name] for name, shape in self._shapes.items() if name in named and named[name].shape == shape
        }

    def _gradients(self, out: Any, call: ModelCall) -> dict[str, torch.Tensor]:
        outs = [tensor for tensor in tensors.tensors(out).values() if tensor.requires_grad]
        named = {name: parameter for name, parameter in self._model.named_parameters() if parameter.requires_grad}
        named |= {
            path: leaf
            for path, leaf in zip(call.paths, call.leaves, strict=True)
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad
        }
        if not outs or not named:
            return {}
        weights = [torch.arange(y.numel(), device=y.device).cos().to(y.dtype).view(y.shape) for y in outs]
        found = torch.autograd.grad(outs, list(named.values()), weights, allow_unused=True)
        return {name: gradient for name, gradient in zip(named, found, strict=True) if gradient is not None}


def _is_same(indices: torch.Tensor, leaf: Any) -> bool:
    return indices.shape == leaf.shape and indices.dtype == leaf.dtype and bool((indices == leaf).all())


def _counts_batches(model: Any) -> bool:
    norms = (torch.nn.modules.batchnorm._NormBase,)
    return any(isinstance(module, norms) and module.training for module in model.modules())


def _is_all_padding(reader: Reader, call: ModelCall) -> bool:
    data = [call.leaves[at] for at in data_of(reader, call)]
    fills = [rule_of(call.paths[at], reader.fill, 0) for at in data_of(reader, call)]
    return bool(data) and all(
        not leaf.is_floating_point() and bool((leaf == fill).all()) for leaf, fill in zip(data, fills, strict=True)
    )


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
    return reader.resized(call, sizes)


def _versions(call: ModelCall) -> list[int]:
    inputs = (leaf for leaf in call.leaves if isinstance(leaf, torch.Tensor))
    return [leaf._version for leaf in inputs if not leaf.is_inference()]

"""What to change so that less is held at the peak: by what the memory is for, the first change first.

Each large purpose has one change, with what it saves at that moment and what it costs. A change that costs nothing goes
before one that costs time or precision where it saves a third as much. Savings are of this moment; another may become
the peak. Sources: documentation of ``torch.nn.functional.scaled_dot_product_attention``, ``torch.utils.checkpoint``,
``torch.optim`` (``fused``, ``foreach``), ``Optimizer.zero_grad``; Dettmers et al. 2021 (8-bit optimizers); Hsu et al.
2024 (Liger kernels: cross-entropy in chunks).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from torchtriage.core.arrays import Mask
from torchtriage.core.finding import Note
from torchtriage.core.names import file_name
from torchtriage.core.units import format_bytes, format_share
from torchtriage.memory.snapshot.attribution import Category, MemoryPhase, Owners
from torchtriage.memory.snapshot.peak_usage import by_stack, categories, phases
from torchtriage.memory.snapshot.result import RECORD
from torchtriage.memory.snapshot.snapshot import NONE, Action
from torchtriage.memory.snapshot.timeline import Timeline

LARGE_SHARE = 0.1
LEAST_BYTES = 64 << 20
"""A change that saves less than this share of what is held, or less than this, is not worth a word."""
FREE_SHARE = 1 / 3
"""A change that costs nothing goes first if it saves this much of what the best one saves."""
FULL_SHARE = 0.9
"""Of what is reserved: with more allocated at the snapshot, an unrecorded peak cannot have been much higher."""
SCORES_BYTES = 1 << 20
"""Backward tensors of the size of scores or logits are taken as theirs from here on."""
PAIR_SHARE = 0.02
"""Of what is held: results from here on are looked at one by one."""
_COMPRESSED = re.compile(r"compress|quant|4bit|8bit|gptq|awq", re.IGNORECASE)
_IN_PLACE = re.compile(r"^(at::_ops::)?(relu|leaky_relu|elu|sigmoid|tanh)_?(::|$)")
_INPUT_KEPT = re.compile(r"^(at::_ops::)?(gelu|silu|mish|hardswish|softplus)_?(::|$)")
"""Their backward pass reads the input: in place they are an error in training."""


@dataclass(frozen=True)
class _Change:
    code: str
    what: str
    cost: str
    fix: str
    held: int
    low: int
    high: int
    is_free: bool = False

    def note(self, total: int) -> Note:
        low = f"{format_bytes(self.low)} to " if self.low != self.high and self.low else ""
        upto = "up to " if not self.low else ""
        saves = (
            f"saves {upto}{low}{format_bytes(self.high)} of {format_bytes(total)} ({format_share(self.high / total)})"
        )
        evidence = {"held_bytes": self.held, "low_bytes": self.low, "high_bytes": self.high}
        return Note(self.code, "info", f"{self.what}: {saves}{self.cost}", self.fix, evidence)


def changes(timeline: Timeline, owners: Owners, row: int, checkpointing: tuple[Note, ...] = ()) -> tuple[Note, ...]:
    """Return what to change, first change first, so that less is held after a row of the history.

    ``row`` : the peak's, or that of a failed request. ``checkpointing`` : what ``checkpointing.notes`` returns.
    """
    total = timeline.allocated_at(row)
    if total < LEAST_BYTES:
        return ()
    found = _Found(timeline, owners, row, total, has_checkpointing=bool(checkpointing))
    least = max(LARGE_SHARE * total, LEAST_BYTES)
    rest = [change for change in found.all() if change.high >= least]
    checkpointing = tuple(note for note in checkpointing if note.evidence["high_bytes"] >= LEAST_BYTES)
    best = max([change.high for change in rest] + [note.evidence["high_bytes"] for note in checkpointing], default=0)
    ranked = [(change.is_free and change.high >= FREE_SHARE * best, change.high, change.note(total)) for change in rest]
    ranked += [(False, note.evidence["high_bytes"], note) for note in checkpointing]
    ranked.sort(key=lambda entry: (not entry[0], -entry[1]))
    notes = tuple(note for _, _, note in ranked)
    reserved = timeline.reserved_at(row)
    if row >= timeline.start or (notes and total >= FULL_SHARE * reserved):
        return notes
    message = (
        f"record from the start: the peak is not in this file, {format_bytes(total)} were allocated when it begins and"
        f" {format_bytes(reserved)} reserved"
    )
    return (Note("record", "info", message, RECORD), *notes)


class _Found:
    """The large purposes at a moment."""

    def __init__(self, timeline: Timeline, owners: Owners, row: int, total: int, *, has_checkpointing: bool) -> None:
        self.timeline, self.owners, self.row, self.total = timeline, owners, row, total
        self.lives = timeline.lives
        self.alive = timeline.alive(row)
        self.phase = phases(timeline, owners)
        self.category = categories(timeline, owners, self.phase)
        self.has_checkpointing = has_checkpointing
        history = owners.snapshot.history
        failed = row >= timeline.start and history.action[row] == Action.OOM
        self.failed_stack = int(history.stack[row]) if failed else NONE
        self.failed_bytes = int(history.size_bytes[row]) if failed else 0

    def all(self) -> list[_Change]:
        scores = self._like(self.owners.is_scores)
        logits = self._like(self.owners.is_loss) & ~scores
        other = self.alive & ~scores & ~logits
        return [
            self._scores(scores),
            self._logits(logits),
            self._kept_outputs(other),
            self._elementwise(other),
            self._gradients(other & (self.category == Category.GRADIENTS)),
            self._parameters(other & (self.category == Category.PARAMETERS)),
            *self._by_purpose(other),
        ]

    def _like(self, of_stack: Mask) -> Mask:
        """Return which living tensors have such a stack, or are made by the backward pass in their size."""
        mine = by_stack(of_stack, self.lives.stack)
        sizes = np.unique(self.lives.size_bytes[mine & (self.lives.size_bytes >= SCORES_BYTES)])
        backward = (self.phase == MemoryPhase.BACKWARD) & (self.category != Category.GRADIENTS)
        return self.alive & (mine | (backward & np.isin(self.lives.size_bytes, sizes)))

    def _bytes(self, mine: Mask) -> int:
        return int(self.lives.size_bytes[mine].sum())

    def _at(self, mine: Mask) -> str:
        """Return the line that holds most of them."""
        rows = np.flatnonzero(mine & (self.lives.stack >= 0))
        if not len(rows):
            return ""
        sums = np.bincount(self.lives.stack[rows], weights=self.lives.size_bytes[rows])
        frame = self.owners.user_frame(int(np.argmax(sums)))
        return f" ({file_name(frame.file)}:{frame.line})" if frame is not None else ""

    def _scores(self, mine: Mask) -> _Change:
        held = self._bytes(mine)
        return _Change(
            "fused-attention",
            f"attention without written-out scores{self._at(mine)}",
            ", and time",
            "x = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)  # softmax(q kᵀ) v",
            held,
            held,
            held,
            is_free=True,
        )

    def _logits(self, mine: Mask) -> _Change:
        wanted = self.failed_bytes if self.failed_stack >= 0 and self.owners.is_loss[self.failed_stack] else 0
        held = self._bytes(mine) + wanted
        asked = f", {format_bytes(wanted)} of it the request that failed" if wanted else ""
        return _Change(
            "fused-cross-entropy",
            f"cross-entropy in chunks or one fused kernel{self._at(mine)}",
            f"{asked}",
            "loss = LigerFusedLinearCrossEntropyLoss()(lm_head.weight, hidden, target)  # or chunks under checkpoint()",
            held,
            held * 3 // 4,
            held * 7 // 8,  # with eight chunks
            is_free=True,
        )

    def _kept_outputs(self, mine: Mask) -> _Change:
        """Of two results of one line, the older goes when the program has made the newer: it could go before."""
        lives = self.lives
        freed_in = by_stack(self.owners.phase, lives.free_stack)
        large = mine & (lives.size_bytes >= PAIR_SHARE * self.total) & (lives.stack >= 0) & (lives.born >= 0)
        large &= np.isin(self.category, (Category.ACTIVATIONS, Category.UNKNOWN))
        groups: dict[str, list[int]] = {}
        for life in np.flatnonzero(large)[np.argsort(lives.born[large])].tolist():
            groups.setdefault(self.owners.label[lives.stack[life]], []).append(life)
        older = np.zeros(len(lives), np.bool_)
        for pair in groups.values():
            alike = len(pair) == 2 and 0.99 < lives.size_bytes[pair[0]] / lives.size_bytes[pair[1]] < 1.01
            older[pair[0]] = alike and lives.freed[pair[0]] < lives.freed[pair[1]]
        older &= freed_in == MemoryPhase.OTHER
        held = self._bytes(older)
        return _Change(
            "free-outputs",
            f"release the last result before computing the next one{self._at(older)}",
            ", if nothing reads it any more",
            "del out  # before the next call, or keep out.detach().cpu()",
            held,
            held,
            held,
            is_free=True,
        )

    def _elementwise(self, mine: Mask) -> _Change:
        keeps_input = self.has_checkpointing or (self.phase == MemoryPhase.BACKWARD).any()
        stacks = self.owners.snapshot.stacks
        is_it = [
            bool(_IN_PLACE.search(name) or (not keeps_input and _INPUT_KEPT.search(name))) for name in stacks.functions
        ]
        has = by_stack(stacks.having(np.array(is_it, np.bool_)), self.lives.stack)
        mine = mine & (self.category == Category.ACTIVATIONS) & has
        held = self._bytes(mine)
        return _Change(
            "in-place-activation",
            f"the activation function in place or fused with its neighbours{self._at(mine)}",
            "",
            "x = torch.nn.functional.relu_(x)  # for others torch.compile fuses the neighbours",
            held,
            0,
            held,
            is_free=True,
        )

    def _gradients(self, mine: Mask) -> _Change:
        held = self._bytes(mine)
        last = np.argmax(np.where(self.lives.born <= self.row, self.lives.born, -2)) if len(self.lives) else 0
        if len(self.lives) and self.phase[last] == MemoryPhase.FORWARD:
            return _Change(
                "set-to-none",
                "gradients of the last step released before the forward pass",
                "",
                "optimizer.zero_grad(set_to_none=True)",
                held,
                held,
                held,
                is_free=True,
            )
        return _Change(
            "gradients",
            "gradients used and released one by one in the backward pass, or accumulated in bfloat16",
            "; without clipping by the global norm",
            "p.register_post_accumulate_grad_hook(step_and_clear)  # an optimizer for each parameter",
            held,
            held // 2,
            held,
        )

    def _parameters(self, mine: Mask) -> _Change:
        held = self._bytes(mine)
        largest = np.flatnonzero(mine & (self.lives.stack >= 0))
        frames = {frame for stack in set(self.lives.stack[largest].tolist()) for frame in self._frames(stack)}
        if any(_COMPRESSED.search(text) for text in frames):
            return _Change(
                "offload",
                f"compressed weights moved to the host until their layer runs{self._at(mine)}",
                " at the cost of copies in each pass",
                "model = accelerate.cpu_offload(model)  # or fewer layers on this device",
                held,
                0,
                held,
            )
        casts = (self.category == Category.CASTS).any()  # copies in half precision: these are whole
        return _Change(
            "smaller-parameters",
            f"weights in bfloat16 or in 8 or 4 bits, or moved to the host until their layer runs{self._at(mine)}",
            ("" if casts else ", if they are float32") + "; check the accuracy",
            "model = model.to(torch.bfloat16)",
            held,
            held // 2 if casts else 0,
            held // 2,
        )

    def _frames(self, stack: int) -> list[str]:
        stacks = self.owners.snapshot.stacks
        return [f"{stacks.files[frame]} {stacks.functions[frame]}" for frame in stacks.frames_of(stack)[:6]]

    def _by_purpose(self, mine: Mask) -> list[_Change]:
        """Return those of which nothing but their size is asked."""
        optimizer = self.phase == MemoryPhase.OPTIMIZER
        temporary = self.category == Category.TEMPORARIES
        activations = (self.category == Category.ACTIVATIONS) & (not self.has_checkpointing)
        rows = (
            (
                self.category == Category.OPTIMIZER_STATE,
                ("optimizer-state", "optimizer state in 8 bits, or a shard of it on each rank", "; check the loss"),
                "optimizer = bitsandbytes.optim.AdamW8bit(model.parameters())  # or ZeroRedundancyOptimizer, FSDP",
                (0.5, 0.75),
            ),
            (
                temporary & optimizer,
                ("optimizer-temporaries", "one fused kernel instead of the optimizer's temporaries", ""),
                "optimizer = torch.optim.AdamW(model.parameters(), fused=True)  # or foreach=False",
                (1.0, 1.0),
            ),
            (
                (temporary & ~optimizer) | activations,
                (
                    "smaller-batch",
                    "half the batch at a time, in training with accumulated gradients",
                    " at the cost of more launches",
                ),
                "(loss / 2).backward()  # for each half",
                (0.5, 0.5),
            ),
            (
                self.category == Category.CACHE,
                ("kv-cache", "the KV cache in pages, or in 8 bits", "; check the accuracy"),
                "QuantizedCache(...) of transformers, or a paged server such as vLLM",
                (0.0, 0.5),
            ),
            (
                self.category == Category.CASTS,
                ("autocast-copies", "weights in bfloat16 instead of autocast's copies", ""),
                "model = model.to(torch.bfloat16)  # in training: torch.autocast(..., cache_enabled=False)",
                (1.0, 1.0),
            ),
            (
                self.category == Category.WORKSPACE,
                ("workspace", "smaller library workspaces", ", perhaps at the cost of slower kernels"),
                "CUBLAS_WORKSPACE_CONFIG=:4096:2 in the environment; torch.backends.cudnn.benchmark = False",
                (0.0, 1.0),
            ),
            (
                self.category == Category.COMMUNICATION,
                ("communication-buffers", "smaller buckets", ", perhaps at the cost of less overlap"),
                "DistributedDataParallel(model, bucket_cap_mb=10, gradient_as_bucket_view=True)",
                (0.0, 0.5),
            ),
        )
        found = []
        for of_purpose, (code, what, cost), fix, (low, high) in rows:
            held = self._bytes(mine & of_purpose)
            is_free = not cost
            found.append(_Change(code, what, cost, fix, held, int(low * held), int(high * held), is_free))
        return found

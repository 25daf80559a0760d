"""Who asked for memory: the line, the module, the phase and the operation behind each stack.

All of it is read from the names of frames, so it is as good as the stacks are: Python frames name
lines, C++ frames (``stacks="all"``) name the backward nodes and the library workspaces that have
no Python frame at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrays import Mask
from torchtriage.core.finding import Frame
from torchtriage.core.names import word_list
from torchtriage.core.trace.frames import is_user_frame
from torchtriage.memory.snapshot.snapshot import Codes, Snapshot

NO_STACK = "no stack recorded"

_PYTHON = re.compile(r"\.py$|^<ipython|ipykernel")
_NOTEBOOK = re.compile(r"(^|/)(ipykernel|IPython|ipython|traitlets)/|/runpy\.py$")
_OPTIMIZER = re.compile(r"(^|/)optim(izer)?s?/[^/]+\.py$|torch/optim/")
_MODULES = re.compile(r"torch/nn/modules/(?P<name>\w+)\.py$")
_NETWORK = re.compile(r"torch/nn/(modules/|functional\.py$|parallel/)")
_AUTOGRAD = re.compile(r"torch/(_tensor|autograd/__init__|autograd/graph)\.py$")
_BACKWARD = {"backward", "grad", "_make_grads", "_engine_run_backward"}
_ENGINE = re.compile(r"autograd::(?:python::Python)?Engine::|autograd::\w+::\w*Backward\w*::apply|AccumulateGrad::")
_CELL = re.compile(r"ipykernel_\d+/|<ipython-input")
_NODE = re.compile(r"\b(?P<node>\w+Backward\d*)(?:<[^<>]*>)?::apply")
_OP = re.compile(r"at::_ops::(?P<op>\w+)::(?:call|redispatch)")
_WORKSPACE = re.compile(r"[wW]orkspace|cublas(?:(?!cublas)\w)*(?:Create|Handle)|(?:raw|run)_(?:cudnn|miopen)")
_CACHE = re.compile(r"(^|/)(cache_utils\w*|kv_?cache|static_cache|kv_cache_manager)\.py$")
_PARAMETERS = set(
    word_list("""
    convert _apply reset_parameters load_state_dict _load_from_state_dict from_pretrained _load_state_dict_into_model
    _load_pretrained_model
""")
)
_LOADING = re.compile(
    r"^_*(init|load|create|make|build)(_all|_pretrained|_shard(ed)?)?_(weights?|params|parameters|model|checkpoint)"
    r"(_list|_dict)?$"
)
_MAKES_CACHE = re.compile(r"^_*(init|alloc|allocate|create|make|build)_(kv_?|static_)?caches?$")
_CASTS = re.compile(r"autocast::cached_cast")
_LOSS = re.compile(r"cross_entropy|log_?softmax|nll_loss|LogSoftmax|NllLoss", re.IGNORECASE)
_SOFTMAX = re.compile(r"(?<!log)(?<!log_)softmax", re.IGNORECASE)
_ATTENTION = re.compile(r"attention|attn|(^|[/_])mha([_.]|$)", re.IGNORECASE)
_WRITTEN_OUT = re.compile(r"dot_product|attention_(scores|weights)|eager_attention")
_COMMUNICATION = re.compile(r"ProcessGroup\w+::|c10d::Reducer|FlatParam|all_gather|reduce_scatter")


class MemoryPhase(IntEnum):
    """The part of a training step that asked."""

    UNKNOWN = 0
    OTHER = 1
    FORWARD = 2
    BACKWARD = 3
    OPTIMIZER = 4


class Category(IntEnum):
    """What a tensor is for, as far as its stacks show."""

    UNKNOWN = 0
    PARAMETERS = 1
    GRADIENTS = 2
    OPTIMIZER_STATE = 3
    ACTIVATIONS = 4
    TEMPORARIES = 5
    WORKSPACE = 6
    CACHE = 7
    COMMUNICATION = 8
    CASTS = 9


@dataclass(frozen=True)
class Owners:
    """What each distinct stack of a snapshot says, as columns over ``snapshot.stacks``.

    ``user`` : the innermost frame of the user's own Python, -1 for none. ``python`` : the innermost Python frame
    of anyone. ``module`` : the innermost frame that is the forward of a module. ``phase`` : a
    :class:`MemoryPhase`. ``category`` : a :class:`Category` where the stack alone says it. ``is_zero_grad`` :
    gradients are given back. ``is_loss`` : inside a loss over classes, whose tensors have the size of the logits.
    ``is_scores`` : scores of an attention that is written out. ``is_user_frame`` : bool[n_frames].
    """

    snapshot: Snapshot
    user: Codes
    python: Codes
    module: Codes
    phase: NDArray[np.int8]
    category: NDArray[np.int8]
    is_parameter: Mask
    is_zero_grad: Mask
    is_loss: Mask
    is_scores: Mask
    is_user_frame: Mask

    @classmethod
    def of(cls, snapshot: Snapshot) -> Owners:
        """Return what the stacks of a snapshot say."""
        stacks = snapshot.stacks
        rows = [(file.replace("\\", "/"), name) for file, name in zip(stacks.files, stacks.functions, strict=True)]

        def mask(matches: Callable[[str, str], object]) -> Mask:
            return np.array([bool(matches(*row)) for row in rows], np.bool_)

        has = stacks.having
        python = mask(lambda file, _: _PYTHON.search(file))
        user = mask(lambda file, name: _PYTHON.search(file) and _is_users(file, name))
        backward = mask(
            lambda file, name: (
                _ENGINE.search(name)
                or (name in _BACKWARD and _AUTOGRAD.search(file))
                or (name == "backward" and file.endswith(".py"))
            )
        )
        parameter = mask(
            lambda file, name: (
                ((name in _PARAMETERS or _LOADING.search(name)) and file.endswith(".py"))
                or (name == "__init__" and _MODULES.search(file))
            )
        )
        forward = ~parameter & mask(
            lambda file, name: (
                (name in ("forward", "_call_impl", "_conv_forward") and file.endswith(".py")) or _NETWORK.search(file)
            )
        )

        def first(flags: Mask) -> Codes:
            n_all = len(stacks.frame)
            if not len(stacks):
                return np.zeros(0, np.int32)
            places = np.where(flags[stacks.frame], np.arange(n_all), n_all)
            place = np.minimum.reduceat(places, stacks.start[:-1])
            padded = np.append(stacks.frame, np.int32(-1))
            return np.where(place < stacks.start[1:], padded[np.minimum(place, n_all)], -1).astype(np.int32)

        is_parameter = has(parameter)
        phase = np.full(len(stacks), MemoryPhase.OTHER, np.int8)
        is_loss = has(mask(lambda _, name: _LOSS.search(name)))
        phase[(has(forward) | is_loss) & ~is_parameter] = MemoryPhase.FORWARD
        phase[has(backward)] = MemoryPhase.BACKWARD
        phase[has(mask(lambda file, _: _OPTIMIZER.search(file)))] = MemoryPhase.OPTIMIZER
        category = np.full(len(stacks), Category.UNKNOWN, np.int8)
        category[has(mask(lambda _, name: "AccumulateGrad" in name))] = Category.GRADIENTS
        category[is_parameter] = Category.PARAMETERS
        category[has(mask(lambda _, name: name == "_init_group"))] = Category.OPTIMIZER_STATE
        category[has(mask(lambda file, name: _CACHE.search(file) or _MAKES_CACHE.search(name)))] = Category.CACHE
        category[has(mask(lambda _, name: _CASTS.search(name)))] = Category.CASTS
        category[has(mask(lambda _, name: _COMMUNICATION.search(name)))] = Category.COMMUNICATION
        category[has(mask(lambda _, name: _WORKSPACE.search(name)))] = Category.WORKSPACE
        is_attention = mask(lambda file, name: _PYTHON.search(file) and _ATTENTION.search(f"{file} {name}"))
        is_written = mask(lambda file, name: _PYTHON.search(file) and _WRITTEN_OUT.search(name)) & user
        has_softmax = has(mask(lambda _, name: _SOFTMAX.search(name)))
        return cls(
            snapshot=snapshot,
            user=first(user),
            python=first(python),
            module=first(mask(lambda file, name: name == "forward" and file.endswith(".py"))),
            phase=phase,
            category=category,
            is_parameter=is_parameter,
            is_zero_grad=has(mask(lambda _, name: name == "zero_grad")),
            is_loss=is_loss,
            is_scores=((has(is_attention) & has_softmax) | has(is_written)) & ~is_loss,
            is_user_frame=user,
        )

    def frame(self, frame: int) -> Frame:
        """Return a frame; a snapshot has the line where it was, a trace the function's first."""
        stacks = self.snapshot.stacks
        file, line = stacks.files[frame], int(stacks.lines[frame])
        return Frame(file, line, stacks.functions[frame], exact=stacks.is_exact)

    def user_frame(self, stack: int) -> Frame | None:
        """Return the innermost frame of the user's own Python; None where there is none, and for -1."""
        frame = int(self.user[stack]) if stack >= 0 else -1
        return self.frame(frame) if frame >= 0 else None

    def stack(self, stack: int, *, limit: int = 8) -> tuple[Frame, ...]:
        """Return the Python frames of a stack, the user's if there are any, innermost first; none for -1."""
        frames = self.snapshot.stacks.frames_of(stack)
        user = [frame_id for frame_id in frames if self.is_user_frame[frame_id]]
        python = [frame_id for frame_id in frames if _PYTHON.search(self.snapshot.stacks.files[frame_id])]
        return tuple(self.frame(frame_id) for frame_id in (user or python)[:limit])

    def stack_lines(self, stack: int) -> tuple[str, ...]:
        """Return the innermost Python frames of a stack as text; none for -1."""
        return tuple(f"{frame.file}:{frame.line} {frame.function}" for frame in self.stack(stack, limit=6))

    @cached_property
    def label(self) -> list[str]:
        """One line for each stack: ``model.py:41 forward``, or the operation without a line."""
        return list(map(self._label, range(len(self.snapshot.stacks))))

    def _label(self, stack: int) -> str:
        frame = int(self.user[stack])
        if frame >= 0:
            return self.place(frame)
        operation = self.operation(stack)
        if self.phase[stack] == MemoryPhase.BACKWARD:
            return f"backward: {operation}" if operation else "backward, no line recorded"
        frame = int(self.python[stack])
        if frame >= 0:
            return self.place(frame)
        return operation or "C++ without a line"

    def place(self, frame: int) -> str:
        """Return ``folder/file.py:line function`` of a frame."""
        stacks = self.snapshot.stacks
        parts = stacks.files[frame].replace("\\", "/").split("/")
        return f"{'/'.join(parts[-2:])}:{int(stacks.lines[frame])} {stacks.functions[frame]}"

    def operation(self, stack: int) -> str:
        """Return the backward node or operator nearest to the allocation; empty without C++."""
        stacks = self.snapshot.stacks
        op = ""
        for frame in stacks.frames_of(stack):
            name = stacks.functions[frame]
            node = _NODE.search(name)
            if node is not None:
                return node["node"]
            match = _OP.search(name)
            if match is not None and (not op or op.startswith("empty")):
                op = match["op"]
        return op

    def module_name(self, stack: int) -> str:
        """Return the module whose forward asked: ``linear (torch)``, ``model.py: forward``."""
        frame = int(self.module[stack]) if stack >= 0 else -1
        if frame < 0:
            return ""
        file = self.snapshot.stacks.files[frame].replace("\\", "/")
        library = _MODULES.search(file)
        return f"torch.nn.modules.{library['name']}" if library else "/".join(file.split("/")[-2:])


def _is_users(file: str, name: str) -> bool:
    return bool(_CELL.search(file)) or (is_user_frame(f"{file}(1): {name}") and not _NOTEBOOK.search(file))

"""NVTX ranges as operators and annotations.

``torch.autograd.profiler.emit_nvtx`` writes what it knows of an operator into the range's text:
``aten::mm, seq = 12, op_id = 5, sizes = [[2, 3], [3, 4]], input_op_ids = [(4,0)]``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import methodcaller
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_OP_ID, _SIZES, _INPUTS = b", op_id = ", b", sizes = ", b", input_op_ids = "
_DIGITS = b"0123456789"
_MARKS = re.compile(
    rb"(?P<name>.*?)(?:, (?:stashed )?seq = (?P<seq>-?\d{1,18}))?(?:, sizes = (?P<sizes>\[.*\]))?", re.DOTALL
)
_DIMS = re.compile(rb"[\[\]\d, ]*")
# libraries of C++ name their ranges so, too, but in a domain of their own
_OPERATOR = re.compile(
    rb"(?:aten|prims?|c10d(?:_functional)?|autograd|torch|profiler|quantized|torchvision|flash_attn|xformers)::\w"
)
_NAMESPACED = re.compile(rb"\w+::\w[\w.]*")
_BACKWARD = re.compile(rb"\w+Backward\d*")


class NvtxText(NamedTuple):
    """What the text of a range says: a name, whether it is an operator's, its sequence number and sizes of inputs."""

    name: bytes
    is_op: bool
    sequence: int
    dims: bytes


def split_text(texts: Sequence[bytes]) -> tuple[list[NvtxText], NDArray[np.intp]]:
    """Return the distinct texts, ids of operators apart, and for each text which of those it is."""
    if _INPUTS in b"".join(texts):
        texts = [text.partition(_INPUTS)[0] for text in texts]
    # every operator has an id of its own: what is left without is a few hundred texts, of millions
    parts = map(methodcaller("partition", _OP_ID), texts)
    keys = [head + mark + rest.lstrip(_DIGITS) for head, mark, rest in parts]
    index = {key: code for code, key in enumerate(dict.fromkeys(keys))}
    return list(map(_parse, index)), np.fromiter(map(index.__getitem__, keys), np.intp, len(keys))


def _parse(text: bytes) -> NvtxText:
    head, has_id, rest = text.partition(_OP_ID)
    match = _MARKS.fullmatch(head)
    assert match is not None  # its name may be anything
    name = match["name"]
    sequence = int(match["seq"]) if match["seq"] else -1
    # a user's record_function has an id as well, but never a sequence number
    is_op = _OPERATOR.match(name) is not None or (
        (bool(has_id) or sequence >= 0)
        and (sequence >= 0 or _NAMESPACED.fullmatch(name) is not None or _BACKWARD.fullmatch(name) is not None)
    )
    dims = (match["sizes"] or rest.removeprefix(_SIZES)) if is_op else b""
    return NvtxText(name, is_op, sequence, dims if _DIMS.fullmatch(dims) else b"")

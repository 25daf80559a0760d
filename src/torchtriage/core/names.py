"""Names as people can read them: kernels shortened, control characters made visible.

Event names come from the traced program and from whoever sent the file. ``visible`` is what every name passes through
on its way to a screen; ``short_name`` turns a kernel's C++ signature, mangled symbol or generated name into the part
that tells it from its neighbours.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

WIDTH = 60
"""Columns a short name may take."""
LONGEST = 1 << 13
"""Characters kept of any text of a trace; the longest names of real kernels have 5,200."""

_SECRET = re.compile(r"token(?!s|iz)|passw|secret|api.?key|credential|(?<![a-z])auth(?!ors?(?![a-z]))", re.IGNORECASE)
_USER_OF_URL = re.compile(r"(?<=://)([^\s/?#:@]*)(:?)[^\s/?#]*@")
_QUERY_OF_URL = re.compile(r"([?&][^\s?&#=]*)=[^\s&#]*")
_SECRET_QUERY = re.compile(rf"{_SECRET.pattern}|(?<![a-z])(?:sig|signature|key)$", re.IGNORECASE)

# A signature longer than this is cut first: names are input, and reading one must stay cheap.
_MAX_SIGNATURE = 4096

_SCALARS = {
    **dict.fromkeys(("BFloat16", "__bf16", "__hip_bfloat16", "__nv_bfloat16", "bfloat16_t"), "bfloat16"),
    **dict.fromkeys(("Half", "__half", "half", "half_t"), "half"),
    **{name: name for name in ("bool", "char", "double", "float", "int", "long", "short")},
    **{"signed": "int", "unsigned": "uint", "int8_t": "int8", "uint8_t": "uint8"},
}
_KEYWORDS = {"const", "decltype", "false", "lambda", "nullptr", "operator", "true", "type", "void", "volatile"}

# Template arguments that say how a kernel is launched, not what it computes.
_WRAPPER = re.compile(
    r"^(gpu_\w+|ReduceOp|func_wrapper_t|Dispatch\w+|Array|array|Opaque\w+|cublasGem\w+|(float|half|int)[234]"
    r"|\w*(Accessor|Calculator|DataType|DataType_t|Iterator|Metadata|NullType|Params|Policy\d*|ScanTileState"
    r"|TensorInfo|LoadWithCast|LoadWithoutCast|StoreWithCast|StoreWithoutCast))$"
)
_GENERIC = {"Kernel", "Kernel2", "kernel", "kentry", "run", "launch"}
_IDENTIFIER = re.compile(r"(?<![\w:])(?:~?\w+::)*~?([A-Za-z_]\w*)")

# What follows only says how the tile is scheduled.
_GEMM_TAIL = re.compile(r"_(warpgroupsize|warpsize|stage\d|execute_)\w*$")
_TENSILE_TILE = re.compile(r"_(MT\d+x\d+x\d+)")


def word_list(text: str) -> tuple[str, ...]:
    """Return the words of a text, in order: how a long table of names is written down."""
    return tuple(text.split())


def file_name(path: str) -> str:
    """Return the last part of a path: reports get shared, folders of a machine should not."""
    return path.replace("\\", "/").rstrip("/").rpartition("/")[2] or path


def visible(text: str) -> str:
    r"""Return ``text`` with every unprintable character written out: ESC becomes ``\x1b``.

    Covers C0 and C1 controls, line breaks, bidirectional overrides, zero-width characters and lone surrogates, so the
    result prints on one line and encodes as UTF-8.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def mask_secrets(words: Sequence[str]) -> list[str]:
    """Return a command's words with ``***`` for what options such as ``--hf-token`` are given.

    Also for the values of settings such as ``HF_TOKEN=…``, and in URLs for passwords, users without one (they are often
    keys) and values of queries such as ``?api_key=…``.
    """
    out: list[str] = []
    masks_next = False
    for word in words:
        name, equals, _ = word.partition("=")
        is_secret = _SECRET.search(name) is not None and (word.startswith("-") or bool(equals)) and "://" not in name
        if is_secret and equals:
            out.append(f"{name}=***")
        elif masks_next and not word.startswith("--"):
            out.append("***")
        else:
            out.append(_mask_url(word) if "://" in word else word)
        masks_next = is_secret and not equals
    return out


def _mask_url(word: str) -> str:
    word = _USER_OF_URL.sub(lambda match: f"{match[1]}:***@" if match[2] else "***@", word)
    return _QUERY_OF_URL.sub(lambda match: f"{match[1]}=***" if _SECRET_QUERY.search(match[1]) else match[0], word)


def elide(text: str, width: int = WIDTH) -> str:
    """Return ``text`` in at most ``width`` characters, cut in the middle: both ends tell apart."""
    if len(text) <= width:
        return text
    tail = max((width - 1) // 3, 0)
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


def short_name(name: str, width: int = WIDTH) -> str:
    """Return a kernel's distinctive part, at most ``width`` characters, safe to print.

    ``void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, …>(…)`` becomes
    ``vectorized_elementwise_kernel<CUDAFunctor_add<float>>``. Names that are no C++ signature
    (``triton_poi_fused_add_3``, ``Memcpy HtoD (Pinned -> Device)``) keep their words.
    """
    name = visible(name[:_MAX_SIGNATURE]).strip()
    if name.startswith("Cijk_"):
        name = _tensile(name)
    elif name.startswith("_Z"):
        name = _mangled(name)
    elif "(" in name or "<" in name:
        name = _signature(name, width)
    return elide(_GEMM_TAIL.sub("", name), width)


def _tensile(name: str) -> str:
    """``Cijk_Alik_Bljk_BBS_BH_…_MT96x96x128_…``: layout, types and tile."""
    tile = _TENSILE_TILE.search(name)
    head = "_".join(name.split("_")[:4])
    return f"{head}_{tile[1]}" if tile else head


def _mangled(name: str) -> str:
    """Name the function of an Itanium symbol, and the first class among its template arguments."""
    at = re.match(r"_ZN?[KVrRO]*(S[a-z])?", name)
    position = at.end() if at else 2
    parts: list[str] = []
    while part := _source_name(name, position):
        parts.append(part[0])
        position = part[1]
    if not parts:
        return name
    base = parts[-1]
    if name[position : position + 1] != "I":
        return base
    skip = re.compile(r"L[a-zA-Z]\w?-?\d+E|S[\dA-Z]*_|S[a-z]|D[a-zF]\d*[b_]?|[A-Za-z_]")
    while position < len(name):
        if argument := _source_name(name, position):
            return f"{base}<{argument[0]}>" if base in _GENERIC else base
        token = skip.match(name, position)
        if not token:
            break
        position = token.end()
    return base


def _source_name(name: str, position: int) -> tuple[str, int] | None:
    """Read ``<length><identifier>`` of a mangled symbol; None when there is none here."""
    digits = re.compile(r"[1-9]\d{0,3}").match(name, position)
    if not digits:
        return None
    end = digits.end() + int(digits[0])
    return (name[digits.end() : end], end) if end <= len(name) else None


def _signature(name: str, width: int) -> str:
    """Shorten a demangled signature; anything that does not parse as one comes back whole."""
    text = name.replace("(anonymous namespace)::", "").replace("(anonymous namespace)", "")
    head_start, open_angle, head_end = _head(text)
    if open_angle < 0:
        # "Memcpy HtoD (Pinned -> Device)" has words before its parenthesis, not a function
        return text[head_start:head_end].rpartition("::")[2] if head_end < len(text) else name
    path = text[head_start:open_angle].split("::")
    base = path[-1]
    if not base:
        return name
    functor, scalar = _arguments(text[open_angle + 1 : head_end])
    if base in _GENERIC:
        if functor:
            return functor
        base = "::".join(path[-2:])
    inside = f"{functor}<{scalar}>" if functor and scalar else functor or scalar
    if not inside:
        return base
    # "elementwise_kernel" is common, the functor is not: the base gives way first
    return f"{elide(base, max(width - len(inside) - 2, 12))}<{inside}>"


_MARKS = re.compile(r"[<({\[>)}\]: ]")


def _head(text: str) -> tuple[int, int, int]:
    """Return where the function's name starts, its ``<`` (or -1), and where the name ends."""
    stack: list[str] = []
    start, angle = 0, -1
    for mark in _MARKS.finditer(text):
        position, char = mark.start(), mark[0]
        if char in "<({[":
            if not stack:
                if char == "(" and position > start:
                    return start, angle, position
                if char == "<" and angle < 0:
                    angle = position
            stack.append(char)
        # "(8)>(0)" inside parentheses is a comparison
        elif stack and (stack[-1], char) in (("<", ">"), ("(", ")"), ("{", "}"), ("[", "]")):
            stack.pop()
        elif not stack and char == " ":
            start, angle = position + 1, -1
        elif not stack and angle >= 0 and char == ":":
            angle = -1  # the template belonged to a class, not to the function
    return start, angle, len(text)


def _arguments(text: str) -> tuple[str, str]:
    """Return the first functor among template arguments and the first scalar type it works on."""
    functor, first_scalar = "", ""
    for match in _IDENTIFIER.finditer(text):
        word = match[1]
        if scalar := _SCALARS.get(word):
            if functor:
                return functor, scalar
            first_scalar = first_scalar or scalar
        elif not functor and word not in _KEYWORDS and not _WRAPPER.match(word):
            functor = word
            if text[match.end() : match.end() + 1] not in ("<", "("):
                return functor, first_scalar
    return functor, first_scalar

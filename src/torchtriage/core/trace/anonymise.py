"""A recording without its owner's names: pseudonyms for all that is not known to be public.

Two rules. In what Python calls things (functions, classes, files, folders) a name is public as a whole, by its library,
or private as a whole. In operators, kernels, annotations and labels each word stands for itself: those of the field
(``attention``, ``gemm``, ``forward``) stay, because rules read them there, and what is left between them is private.
"""

from __future__ import annotations

import builtins
import os
import re
import sys
from collections.abc import Collection
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from torchtriage.core.trace import kernel_categories
from torchtriage.core.trace import public_names as public
from torchtriage.core.trace.columns import Detail, Lane, Trace
from torchtriage.core.trace.event_types import CATEGORIES, READ_AGAIN
from torchtriage.core.trace.frames import INDUCTOR_FILE, LIBRARIES, PYTHON_FRAME, STANDARD_ANYWHERE, STANDARD_FIRST
from torchtriage.core.trace.operator_words import OPERATOR_WORDS
from torchtriage.core.trace.pseudonyms import Pseudonyms
from torchtriage.core.trace.schema import BACKWARD_NODE, Kind

_FIELD = """
accelerator accessor acl aclnn aclop aclrt acquire adds ai all2all allocated amd analysis aot array ascend ascendcl
async aten attr autograd axpy backend backward backwards bad batch batchnorm bench bf16 bfloat bfloat16 bmm bool bs
bucket buffer built bwd bytecode bytes cache cached call cann capture captured ccp char cl class codegen collate collect
comm command common comms compile compiled computing conditional const context convolve copy core counter cpp cpu create
criterion ctx cublas cuda cuda_graph cudagraph cudnn cunn cupti data dataloader dataparallel ddp decode decoder default
dequeue desc deserialize destroy detail device dgemm dispatcher distributed divides divs dma double driver dynamo enable
end engine enqueue entire enumerate eq eval evaluate event events exchange execute executor expand explicit extend fail
false float flush fnet fork format forward fp16 fp32 fp8 free fsdp fully function functional functions fused fwd fx
gather gc ge gemvx gen generate generation generic genericlist gloo gpu gradients graph grid groupnorm gt guard guards
half hardware hccl hcl headeronly hgemm high hip hipblas host hpu id if implicit inductor inf inference init inner input
instant instrumentation int int8 integral interpreter invalid iter iteration iterator jit json kernel kineto launch
layer layernorm lazy list listlist ll loader loading long lookup low malloc mark mat maybe memcpy memset meta method mi
mixed mlp mma mode module monotonic mpi mtia muls multi multimem multiplies multistage nan nccl ndarray new next nn node
none norm npu nt null numpy nvlink object op open operator optimizer optional overhead overlap pageable parallel param
params pass peer per perf pg pipeline plus poi poll pool post pre predicated prefill pregraph print privateuse1 process
processing profiler profilerstep prologue ptr py python pytorch queue rank raw rccl read receive record red reducer
region regions reinterpret release replay repr req reqs request requests reset restrict rms rmsnorm rocm rocprim root
run runtime scalar scalarlist scheduler sd self send server sgemm sharded shared short signed single size sk sleep
slices spans spec spl sq sqsk sqsq stack stage start state step stop store stream struct subgraph swiglu symm sync
synchronize target tem tensor tensorlist tf32 thread threadblock tiling time timed timeout timer tn to tok toks topk
torch trace traces tracing train trainer training traits trans transformer triggered triton true tt tuple type ucc uint8
ul ull unary undefined unk unknown unsigned validation variadic vector verify void wait warmup warp window work worker
workspace wrapped wrapper write xccl xla xpu zero
"""
_WORDS = frozenset(
    (
        *_FIELD.split(),
        *OPERATOR_WORDS,
        *kernel_categories.words(),
        *re.findall(r"[a-z]{3,}", public.VENDOR_WORD.pattern.lower()),
    )
)
_SPLIT = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|_+|[^\W\d_]+")
_SHORTEST, _SHORTEST_OF_VENDORS = 2, 4
"""Letters of a word that may be private; vendors' kernels have tiles and layouts in their names."""
_LONG_NUMBER = 7
"""Digits: no step, size or line has so many, an account or a date may."""

_PLACE = "__anonymous__"
_CHAIN = re.compile(r"\w+(?:::~?\w+)*")
_LIBRARY_SPACES = """
torch std ck ck_tile aiter hipcub rocblas hipblaslt miopen tensile fbgemm fbgemm_gpu PyTorchMemEffAttention
vllm _vllm_fa3_C _moe_C sgl_kernel flashinfer deep_gemm deep_ep transformer_engine cask_cudnn
"""
_SPACES = frozenset((*public.SPACES.split("|"), *public.NAMESPACES.split("|"), *_LIBRARY_SPACES.split()))
_SHARED_SPACES = frozenset(("torch", "std", "internal", "quantized", "xla", "profiler", "inductor"))
"""Anybody's, or words that anybody may call a namespace: what is in them counts by its words."""
_CUDA = ("cuda::std::", "cuda::__")
_VENDOR = re.compile(
    r"Cijk_\w+|igemm_(?:fwd|bwd|wrw)_gtcx?\d*(?:_(?:[a-z]{0,3}[\dx]*|nhwc|nchw|gkgs))*|triton__\d[\ddec]*"
)
_MANGLED = re.compile(r"_Z\w+")
_LENGTH = re.compile(r"[1-9]\d{0,3}")
_SUBSTITUTION = re.compile(r"S[\dA-Z]?_")
_EARLIER = ("S_", *(f"S{digit}_" for digit in "0123456789"))
_QUALIFIERS = ("K", "V", "r")
_NO_NAME = re.compile(r"L[a-zA-Z]\w?-?\d+E|S[\dA-Z]*_|S[a-z]|T\d*_|D[a-zF]\d*[b_]?|[A-Za-z_]")

_RESUME = re.compile(r"(torch_dynamo_resume_in_)(.+)(_at_\d+)")
_FUNCTION = re.compile(r"__\w+__|<\w+>|forward|backward|step|setup_context")
"""What PyTorch and Python themselves ask a class to call its methods."""
_MODULE = "nn.Module: "
_INSTANCE = re.compile(r"(.*?)((?:_\d+)?)", re.DOTALL)
_OWNER = re.compile(
    r"PyCapsule|_ParameterMeta|(?:torch|numpy|builtins|collections|pybind11_builtins|_abc|_asyncio|_C|_collections"
    r"|_contextvars|_csv|_ctypes|_functools|_hashlib|_io|_json|_lsprof|_multiprocessing|_pickle|_queue|_random|_socket"
    r"|_sre|_ssl|_struct|_thread|_weakref)\.[\w.]+"
)

_FIRST = frozenset(LIBRARIES.split("|"))
_PACKAGES = _FIRST | {"psutil", "pynvml", "wandb", "mlflow", "tensorboard", "tensorboardX"}
"""Some write the user's files into a folder of their own name: only installed ones are public."""
_KEPT_FOLDERS = frozenset((*_PACKAGES, *STANDARD_ANYWHERE.split("|"), *STANDARD_FIRST.split("|")))
"""Whoever's they are: by these words a frame counts as a library's, :func:`is_user_frame`."""
_ENGINES = frozenset(("vllm", "sglang", "tensorrt_llm"))
"""Run from their source trees as often as installed."""
_INSTALLED = ("site-packages", "dist-packages")
_PYTHON = re.compile(r"python\d(?:\.\d+)?|lib(?:64)?")
_VERSION = re.compile(r"python\d(?:\.\d+)?")
_FROZEN = re.compile(r"<frozen ([\w.]+)>")
_COMPONENT = re.compile(r"(?!\.\.)[\w.-]+")
_STANDARD = Path(os.__file__).parent
_ENDING = re.compile(r"\.(?:py|pyc|pyx|so|cpp|cc|cu|cuh|h|json|gz|pt|trace|zip)\b")

_QUOTED = re.compile(r"(?<=at byte )(\d+): .*", re.DOTALL)
"""What a message quotes of an event that cannot be read."""
_NUMBERS = re.compile(r"(?:[\d\s.,:\[\]()+-]|[eE](?=[\d+-])|True|False|None|nan|inf)*")

_META = {
    *("schemaVersion", "displayTimeUnit", "baseTimeNanoseconds", "roctracer_version", "cupti_version"),
    *("record_shapes", "with_stack", "profile_memory", "with_flops", "with_modules"),
    *("deviceProperties", "distributedInfo", "host_name"),
}
_VERSION_KEY = re.compile(r"(?:hip|cuda|nccl)_\w*version")
_DEVICE = {"name"}
"""The one text of a device that is the maker's: a serial number is not."""


@dataclass(frozen=True, eq=False)
class AnonymousTrace(Trace):
    """A recording whose names are replaced; the ``whole`` is as recorded."""

    whole: Trace = field(kw_only=True, repr=False)
    anonymiser: Anonymiser = field(kw_only=True, repr=False)

    def args(self, row: int) -> dict[str, Any]:
        """Return those arguments of a row that rules read from the file, their texts replaced."""
        found = self.whole.args(row)
        return {key: self.anonymiser.value(found[key]) for key in READ_AGAIN if key in found}


class Anonymiser:
    """Replaces what is private in names, arguments and metadata."""

    def __init__(self, pseudonyms: Pseudonyms) -> None:
        self._of = pseudonyms.of
        self._names: dict[tuple[str, str], str] = {}
        self._raw: dict[bytes, bytes] = {}

    # -- names ---------------------------------------------------------------------------------

    def name(self, kind: Kind, text: str) -> str:
        """Return what a row of this kind and name may be called outside."""
        how = "python" if kind == Kind.PYTHON else "runtime" if kind == Kind.RUNTIME else "text"
        known = self._names.get((how, text))
        if known is None:
            known = self._names[how, text] = self._named(how, text)
        return known

    def _named(self, how: str, text: str) -> str:
        if how == "python":
            return self._python(text)
        if how == "runtime" and public.CALL.fullmatch(text):
            return text
        of_library = any(rule.fullmatch(text) for rule in (public.OPERATOR, public.ANNOTATION, public.COPY, _VENDOR))
        if of_library and _space(text.removeprefix(BACKWARD_NODE)) not in _SHARED_SPACES:
            return text
        return self.text(text)

    def text(self, text: str) -> str:
        """Return a text in which the words of the field stand, and pseudonyms for the others."""
        found = text.replace(public.ANONYMOUS, _PLACE)
        return _CHAIN.sub(self._chain, found).replace(_PLACE, public.ANONYMOUS)

    def category(self, text: str) -> str:
        """Return an event's category."""
        return text if text in CATEGORIES else self.text(text)

    def _chain(self, match: re.Match[str]) -> str:
        chain = match[0]
        space = _space(chain)
        if chain.startswith(_CUDA) or (space in _SPACES and space not in _SHARED_SPACES):
            return chain
        return "::".join(map(self._part, chain.split("::")))

    def _part(self, name: str) -> str:
        if name == _PLACE or _is_vendors(name) or (not name[0].isdecimal() and public.ARGUMENT.fullmatch(name)):
            return name
        return self._mangled(name) if _MANGLED.fullmatch(name) else self._identifier(name)

    def _identifier(self, text: str) -> str:
        """Replace the longest runs of private words in an identifier."""
        shortest = _SHORTEST if public.VENDOR.match(text) is None else _SHORTEST_OF_VENDORS
        pieces = _SPLIT.findall(text)
        private = [_is_private(piece, shortest) for piece in pieces]
        out: list[str] = []
        at = 0
        while at < len(pieces):
            end = at
            # numbers and underscores join the private words around them
            for position in range(at, len(pieces)):
                if private[position]:
                    end = position + 1
                elif pieces[position].isalpha():
                    break
            if private[at]:
                out.append(self._of("".join(pieces[at:end])))
                at = end
            else:
                out.append(pieces[at])
                at += 1
        return "".join(out)

    def _mangled(self, symbol: str) -> str:
        """Replace the names in an Itanium symbol, each with its length, outside of public namespaces.

        What a template is given and a function takes is not theirs for being there.
        """
        out, position, is_public, may_begin = [symbol[:2]], 2, False, True
        n_public, in_first = 0, True
        while position < len(symbol):
            length = _LENGTH.match(symbol, position)
            start = length.end() if length else position
            end = start + int(length[0]) if length else position
            if length is None or end > len(symbol):
                token = _NO_NAME.match(symbol, position)
                end = token.end() if token else position + 1
                what = symbol[position:end]
                if _SUBSTITUTION.fullmatch(what):
                    # what was named before: the first names of the symbol are counted from S_ on
                    is_public = may_begin and what in _EARLIER[:n_public]
                    may_begin = False
                elif what not in _QUALIFIERS:
                    n_public -= in_first and is_public and what == "E"  # a function is not counted
                    in_first = in_first and position == 2
                    is_public, may_begin = False, what == "N"
                out.append(what)
            else:
                name = symbol[start:end]
                is_public = is_public or (may_begin and name in _SPACES)
                n_public += in_first and is_public
                may_begin = False
                shown = name if is_public or name == "_GLOBAL__N_1" else self._identifier(name)
                out.append(f"{len(shown)}{shown}")
            position = end
        return "".join(out)

    # -- Python --------------------------------------------------------------------------------

    def _python(self, text: str) -> str:
        if text.startswith(_MODULE):
            found = _INSTANCE.fullmatch(text[len(_MODULE) :])
            assert found is not None
            name = found[1] if found[1] in public.MODULES else self._whole(found[1])
            return f"{_MODULE}{name}{found[2]}"
        frame = PYTHON_FRAME.match(text)
        if frame is not None:
            file = self.path(frame["file"])
            function = frame["function"]
            if not library_path(frame["file"]):
                function = self.function(function)
            return f"{file}({frame['line']}): {function}"
        builtin = public.BUILTIN.fullmatch(text)
        if builtin is None:
            return self.text(text)
        name, owner = builtin["name"], builtin["owner"]
        shown = name if name in public.KNOWN_BUILTINS or hasattr(builtins, name) else self._identifier(name)
        if owner and not (public.OWNER.fullmatch(owner) or _OWNER.fullmatch(owner) or owner in ("type", "module")):
            # from the back: one may be a part of the other
            place = builtin.start("owner"), builtin.end("owner")
            text = text[: place[0]] + self._whole(owner) + text[place[1] :]
        elif owner and public.OWNER.fullmatch(owner):
            shown = name
        return text[: builtin.start("name")] + shown + text[builtin.end("name") :]

    def function(self, name: str) -> str:
        """Return what a function of nobody's library may be called."""
        resumed = _RESUME.fullmatch(name)
        if resumed is not None:
            return resumed[1] + self.function(resumed[2]) + resumed[3]
        return name if _FUNCTION.fullmatch(name) else self._whole(name)

    def _whole(self, text: str) -> str:
        """Replace every word, whatever it says, and numbers as long as an account's."""
        return re.sub(r"\w+", lambda match: match[0] if _is_short_number(match[0]) else self._of(match[0]), text)

    def path(self, path: str) -> str:
        """Return a file's path: as it is inside a public package, with pseudonyms in front and elsewhere."""
        if public.GENERATED_FILE.fullmatch(path) or _is_frozen(path):
            return path
        if path.startswith("<frozen "):
            return f"<frozen {self._whole(path[8:])}"
        parts = re.split(r"([/\\])", path)
        names = parts[::2]
        kept = _public_from(names)
        if re.fullmatch(INDUCTOR_FILE, "/".join(names[-2:])):
            kept = min(kept, len(names) - 2)
            parts[-1] = names[-1][:3] + self._component(names[-1][3:])
        for at, part in enumerate(names[:kept]):
            is_kept = part in _INSTALLED or part in _KEPT_FOLDERS or _PYTHON.fullmatch(part)
            parts[2 * at] = part if is_kept else self._component(part)
        return "".join(parts)

    def _component(self, name: str) -> str:
        end = _ENDING.search(name)
        if name in ("__init__.py", "__main__.py"):
            return name
        stem, ending = (name[: end.start()], name[end.start() :]) if end else (name, "")
        head = "torchinductor_" if stem.startswith("torchinductor_") else re.match(r"_*", stem)[0]  # type: ignore[index]
        return head + self._whole(stem[len(head) :]) + (self._endings(ending) if ending else "")

    def _endings(self, text: str) -> str:
        return "".join(part if _ENDING.fullmatch(part) else self._whole(part) for part in re.findall(r"\.?[^.]*", text))

    # -- arguments, labels, metadata -----------------------------------------------------------

    def raw(self, text: bytes) -> bytes:
        """Return a JSON value with its texts replaced."""
        if b'"' not in text:
            return text
        known = self._raw.get(text)
        if known is None:
            known = msgspec.json.encode(self.value(msgspec.json.decode(text)))
            if len(self._raw) < 1 << 16:
                self._raw[text] = known
        return known

    def value(self, value: Any) -> Any:
        """Return a decoded JSON value with its texts, and the keys of its objects, replaced."""
        if isinstance(value, str):
            return value if _NUMBERS.fullmatch(value) else self.text(value)
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if isinstance(value, dict):
            return {self.text(key): self.value(item) for key, item in value.items()}
        return value

    def meta(self, meta: dict[str, Any]) -> dict[str, Any]:
        """Return the metadata that the analysis reads; the rest may say anything."""
        out: dict[str, Any] = {}
        for key, value in meta.items():
            if key == "deviceProperties" and isinstance(value, list):
                out[key] = [_device(item) for item in value if isinstance(item, dict)]
            elif key == "distributedInfo" and isinstance(value, dict):
                facts = {inner: self.value(item) for inner, item in value.items() if inner in _DISTRIBUTED}
                out[key] = {**facts, **_groups(self, value)}
            elif key == "displayTimeUnit" and value in ("ms", "ns"):
                out[key] = value
            elif key in _META or _VERSION_KEY.fullmatch(key):
                # an address is made of short numbers
                out[key] = self._of(str(value)) if key == "host_name" else self.value(value)
        return out

    def trace(self, trace: Trace) -> Trace:
        """Return a recording with all its names replaced; its file is not read again."""
        kinds = np.zeros(len(trace.names), np.uint8)
        kinds[trace.name] = trace.kind
        names = [self.name(Kind(kind), name) for kind, name in zip(kinds.tolist(), trace.names, strict=True)]
        shown = {item.name: getattr(trace, item.name) for item in fields(trace) if item.init}
        shown |= {
            "names": tuple(names),
            "cats": tuple(map(self.category, trace.cats)),
            "lanes": tuple(self._lane(lane) for lane in trace.lanes),
            "details": tuple(Detail(*map(self.raw, detail)) for detail in trace.details),
            "labels": {
                (what, self.value(pid), self.value(tid)): self.text(text)
                for (what, pid, tid), text in trace.labels.items()
            },
            "meta": self.meta(trace.meta),
            "report": msgspec.structs.replace(
                trace.report,
                path=self.path(trace.report.path),
                loss=tuple(_QUOTED.sub(r"\1", text) for text in trace.report.loss),
            ),
            "_decoded": {},
        }
        return AnonymousTrace(**shown, whole=trace, anonymiser=self)

    def _lane(self, lane: Lane) -> Lane:
        return lane._replace(pid=self.value(lane.pid), tid=self.value(lane.tid))


_DISTRIBUTED = {"backend", "rank", "world_size", "pg_count", "nccl_version"}
_GROUP = ("pg_name", "pg_desc", "backend_config", "pg_size", "ranks")


def _groups(names: Anonymiser, info: dict[str, Any]) -> dict[str, Any]:
    listed = info.get("pg_config")
    if not isinstance(listed, list):
        return {}
    known = [item for item in listed if isinstance(item, dict)]
    return {"pg_config": [{key: names.value(item[key]) for key in _GROUP if key in item} for item in known]}


def _device(properties: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in properties.items() if key in _DEVICE or isinstance(value, int | float)}


def _space(name: str) -> str:
    """Return the namespace that a name begins with, empty for none."""
    space, colons, _ = name.partition("::")
    return space if colons else ""


def _is_vendors(name: str) -> bool:
    return bool(_VENDOR.fullmatch(name) or public.PLAIN_KERNEL.fullmatch(name) or public.of_vendor(name))


def _is_short_number(text: str) -> bool:
    return text.isdecimal() and len(text) < _LONG_NUMBER


def _is_private(piece: str, shortest: int) -> bool:
    if piece.startswith("_"):
        return False
    if piece.isdecimal():
        return not _is_short_number(piece)
    return len(piece) >= shortest and piece.lower() not in _WORDS


def _public_from(names: list[str], anywhere: Collection[str] = _ENGINES) -> int:
    """Return from which component of a path on it is a public package's own; their number for none."""
    at = _package_at(names, anywhere)
    return at if all(map(_COMPONENT.fullmatch, names[at:])) else len(names)


def _package_at(names: list[str], anywhere: Collection[str]) -> int:
    for at in range(len(names) - 1, -1, -1):
        if names[at] in _INSTALLED:
            return at + 1 if names[at + 1 : at + 2] and names[at + 1] in _PACKAGES else len(names)
        in_lib = names[max(at - 1, 0)] in ("lib", "lib64")  # a folder lib alone can be anybody's
        if in_lib and _VERSION.fullmatch(names[at]) and _of_python(names[at + 1 :]):
            return at + 1
    if (len(names) > 1 and (names[0] in _FIRST or _of_python(names))) or _LONE.fullmatch(names[0]):
        return 0
    return max((at for at, name in enumerate(names[:-1]) if name in anywhere), default=len(names))


_LONE = re.compile(
    r"(?:threading|contextlib|functools|typing|abc|queue|weakref|copy|random|inspect|runpy|os|re|enum|types|warnings"
    r"|collections|dataclasses|traceback|linecache|socket|selectors|subprocess|pickle|copyreg|operator|time|sre_\w+)\.py"
)


def _of_python(names: list[str]) -> bool:
    """Return whether a file is the standard library's: the user's folders are called ``code`` and ``platform``, too."""
    if not names or names[0].removesuffix(".py") not in sys.stdlib_module_names:
        return False
    return len(names) == 1 or os.path.isfile(_STANDARD.joinpath(*names))  # noqa: PTH113


def library_path(file: str, anywhere: Collection[str] = _ENGINES) -> str:
    """Return a file's path from its public package on, or that of Python itself; empty for anybody else's.

    ``anywhere`` : packages that count in any folder; others do at the start of a path or where they are installed.
    """
    names = re.split(r"[/\\]", file)
    return file if _is_frozen(file) else "/".join(names[_public_from(names, anywhere) :])


def _is_frozen(file: str) -> bool:
    """Return whether a file is one that Python itself has compiled in: programs can be, too."""
    found = _FROZEN.fullmatch(file)
    return found is not None and _of_python(f"{found[1].replace('.', '/')}.py".split("/"))

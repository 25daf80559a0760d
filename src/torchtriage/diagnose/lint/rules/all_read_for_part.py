"""A whole recording or array is read for a part of it.

Looks like: ``wav, sr = torchaudio.load(path)`` and then ``wav[:, start : start + n]``; ``read_video(path)`` of which
    a few frames are taken; ``self.file["x"][:][i]``; ``nib.load(path).get_fdata()[..., z]``;
    ``list(self.file.keys())[i]``.
Slow because: the disk, the decoder and the memory work through all of it for each sample.
Fix: read the part: ``torchaudio.load(path, frame_offset=start, num_frames=n)``, ``self.file["x"][i]``.
Quiet when: all parts are used, or the array is mapped into memory.
Source: torchaudio documentation of ``load``; h5py documentation, "Reading and writing data".
"""

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceCall, keyword, text_of, unpacks
from torchtriage.diagnose.lint.facts import SourceFunction
from torchtriage.diagnose.lint.samples import samples_of
from torchtriage.diagnose.lint.syntax import indices, method_of
from torchtriage.diagnose.lint.work_syntax import Comprehension

RULE = Rule("DAT105", "all-read-for-part", "data", "A whole file is read for part of it", "medium", over=("DAT103",))

FIX = Fix(
    text="Read only the part that is used.",
    code="""info = torchaudio.info(path)
wav, sr = torchaudio.load(path, frame_offset=start, num_frames=n)
x = self.file["x"][i]                      # not self.file["x"][:][i]""",
    link="https://docs.h5py.org/en/stable/high/dataset.html#reading-writing-data",
)

_RECORDINGS = {
    "torchaudio.load": ("num_frames", "frame_offset"),
    "librosa.load": ("duration", "offset"),
    "soundfile.read": ("frames", "start", "stop"),
    "torchvision.io.read_video": ("start_pts", "end_pts"),
    "imageio.mimread": ("memtest",),
    "skvideo.io.vread": ("num_frames",),
    "scipy.io.wavfile.read": ("mmap",),
}
_VIDEO = ("torchvision.io.read_video", "imageio.mimread", "skvideo.io.vread")
_ARRAYS = ("numpy.load", "torch.load", "joblib.load")
_TURNS = ast.For | ast.While | Comprehension
_LISTINGS = frozenset({"keys", "values", "items", "readlines", "namelist", "getnames"})


def find(module: Module) -> Iterator[Hit]:
    """Yield what is read whole in the code of samples, and used in part."""
    samples = samples_of(module)
    for function, call in samples.calls():
        part = _RECORDINGS.get(call.name)
        if part is not None and not unpacks(call.node) and len(call.node.args) == 1:
            if any(keyword(call.node, name) is not None for name in part):
                continue
            cut = _cut(function, call)
            if cut is not None:
                message = f"all of it is read, but only a part is used: {text_of(cut)}"
                yield Hit(call.node, message, call.attr, severity=None if call.name in _VIDEO else "low")
    for function in samples.functions:
        for taken in _collected(function):
            yield Hit(taken, f"all of it is read for one part: {text_of(taken)}")
        named = _named(module, function)
        for node in ast.walk(function.node):
            if not isinstance(node, ast.Subscript) or isinstance(node.slice, ast.Constant):
                continue
            if samples.is_fixed(node.slice, function):
                continue
            if _whole(module, node.value):
                yield Hit(node, f"all of it is read for one part: {text_of(node)}")
            elif isinstance(node.value, ast.Name) and node.value.id in named:
                yield Hit(named[node.value.id], f"all of it is read for one part: {text_of(node)}")


def _cut(function: SourceFunction, call: SourceCall) -> ast.Subscript | None:
    """Return where a recording is cut, None where it is used as it is."""
    names: set[str] = set()
    for node in ast.walk(function.node):
        if isinstance(node, ast.Assign) and node.value is call.node:
            target = node.targets[0]
            first = target.elts[0] if isinstance(target, ast.Tuple) and target.elts else target
            if isinstance(first, ast.Name):
                names.add(first.id)
    looped = {id(item) for part in ast.walk(function.node) if isinstance(part, _TURNS) for item in ast.walk(part)}
    for node in ast.walk(function.node):
        if not isinstance(node, ast.Subscript) or id(node) in looped or not isinstance(node.value, ast.Name):
            continue
        if node.value.id not in names:
            continue
        if call.name in _VIDEO and not isinstance(node.slice, ast.Constant):
            return node
        for item in indices(node):
            if isinstance(item, ast.Slice) and item.lower is not None and item.upper is not None:
                return node if not isinstance(item.lower, ast.Constant) else None
    return None


def _collected(function: SourceFunction) -> Iterator[ast.Subscript]:
    """Yield the parts that are taken of a list of all frames, which nothing else uses."""
    lists = {
        node.targets[0].id
        for node in ast.walk(function.node)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and text_of(node.value) == "[]"
    }
    for name in lists:
        uses = [node for node in ast.walk(function.node) if _of_name(node, name)]
        cuts = [node for node in uses if isinstance(node, ast.Subscript) and _begins_inside(node.slice)]
        grows = [node for node in uses if isinstance(node, ast.Attribute) and node.attr == "append"]
        plain = sum(isinstance(node, ast.Name) and node.id == name for node in ast.walk(function.node))
        if len(cuts) == 1 and len(grows) == 1 and plain == 3:
            yield cuts[0]


def _begins_inside(node: ast.expr) -> bool:
    """Return whether a slice begins where a variable says."""
    return isinstance(node, ast.Slice) and node.lower is not None and not isinstance(node.lower, ast.Constant)


def _of_name(node: ast.AST, name: str) -> bool:
    """Return whether a subscript or an attribute is one of a variable."""
    return (
        isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name
    )


def _whole(module: Module, node: ast.expr) -> bool:
    """Return whether an expression reads all of an array that lies in a file, or lists all entries of one."""
    if isinstance(node, ast.Subscript):
        everything = isinstance(node.slice, ast.Slice) and node.slice.lower is None and node.slice.upper is None
        empty = isinstance(node.slice, ast.Tuple) and not node.slice.elts
        stored = isinstance(node.value, ast.Subscript) and isinstance(node.value.slice, ast.Constant)
        return stored and ((everything and getattr(node.slice, "step", None) is None) or empty)
    if not isinstance(node, ast.Call):
        return False
    name = module.name_of(node.func)
    if name in ("list", "sorted", "tuple") and len(node.args) == 1 and isinstance(node.args[0], ast.Call):
        inner = node.args[0].func
        return isinstance(inner, ast.Attribute) and inner.attr in _LISTINGS and not re.search(r"^(info|meta)", name)
    if name in _ARRAYS:
        return keyword(node, "mmap_mode") is None and keyword(node, "mmap") is None
    return method_of(node) in ("readlines", "get_fdata")


def _named(module: Module, function: SourceFunction) -> dict[str, ast.expr]:
    """Return the names of arrays that are read whole, and used by parts only, each with what reads it."""
    found: dict[str, ast.expr] = {}
    uses: dict[str, int] = {}
    for node in ast.walk(function.node):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and _whole(module, node.value):
            found[node.targets[0].id] = node.value
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            uses[node.id] = uses.get(node.id, 0) + 1
        elif isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.value, ast.Name):
            taken = isinstance(node, ast.Subscript) or node.attr in ("shape", "ndim", "dtype")
            uses[node.value.id] = uses.get(node.value.id, 0) - taken
        elif isinstance(node, ast.Call) and module.name_of(node.func) == "len":
            for given in node.args:
                if isinstance(given, ast.Name):
                    uses[given.id] = uses.get(given.id, 0) - 1
    return {name: node for name, node in found.items() if not uses.get(name)}

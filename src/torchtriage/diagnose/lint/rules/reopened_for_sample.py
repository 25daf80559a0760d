"""A file or folder that many samples share is opened, parsed or listed again for each of them.

Looks like: ``h5py.File(self.path)``, ``lmdb.open``, ``zipfile.ZipFile``, ``sqlite3.connect``, ``pd.read_csv``,
    ``json.load(open(self.path))``, ``np.load(self.path)[i]`` or ``sorted(os.listdir(self.root))[i]`` in
    ``__getitem__``, or in what it calls; a container that is opened for one entry:
    ``OpenSlide(path).read_region(...)``; an array of an ``.npz``, ``self.archive["x"][i]``, which is read whole each
    time that it is asked for by name.
Slow because: opening reads headers and indexes, parsing reads everything, for one sample of many; the workers do
    nothing else while the device waits.
Fix: list and parse in ``__init__``; open the container with the first sample that a worker loads, and keep it open.
Quiet when: each sample has a file of its own, the handle is stored, or the file is mapped into memory.
Source: h5py documentation, "File objects"; PyTorch documentation of ``torch.utils.data``.
"""

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import (
    Fix,
    Hit,
    Module,
    Rule,
    SourceCall,
    SourceFunction,
    arguments,
    keyword,
    literal,
    text_of,
)
from torchtriage.diagnose.lint.samples import Samples, samples_of
from torchtriage.diagnose.lint.syntax import argument, names_in, path_of

RULE = Rule(
    "DAT103",
    "reopened-for-sample",
    "data",
    "A shared file is reopened for every sample",
    "medium",
    over=("LCH105", "HST101"),
)

FIX = Fix(
    text="Open it once in each worker, and leave it open.",
    code="""def __getitem__(self, i):
    if self.file is None:                  # the first sample of this worker
        self.file = h5py.File(self.path, "r")
    return self.file["x"][i]""",
    link="https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading",
)
_KEEP = Fix(
    text="Read the arrays once, and keep them.",
    code='self.load = np.load(path)["load"]',
    link="https://numpy.org/doc/stable/reference/generated/numpy.load.html",
)

_CONTAINERS = re.compile(
    r"^(h5py\.File|lmdb\.open|zarr\.open\w*|sqlite3\.connect|zipfile\.ZipFile|tarfile\.(open|TarFile)"
    r"|rasterio\.open|(openslide\.)?(OpenSlide|open_slide)|tiffslide\.TiffSlide|netCDF4\.Dataset|xarray\.open_\w+|tables\.open_file"
    r"|pyarrow\.parquet\.(ParquetFile|read_table)|anndata\.read_h5ad|scanpy\.read\w*|uproot\.open|pysam\.\w+File|pyfaidx\.Fasta)$"
)
_FILES = re.compile(
    r"^(open|io\.open|gzip\.open|numpy\.(load|loadtxt|genfromtxt|fromfile)|torch\.load|joblib\.load|pickle\.load|json\.load"
    r"|yaml\.\w*load|pandas\.read_\w+|polars\.read_\w+|scipy\.io\.loadmat|nibabel\.load|imageio\.\w*read|xml\.etree\.ElementTree\.parse"
    r"|torchaudio\.load|librosa\.load|soundfile\.read|cv2\.(imread|VideoCapture)|PIL\.Image\.open|decord\.VideoReader"
    r"|torchvision\.io\.read_\w+|pycocotools\.coco\.COCO)$"
)
_LISTS = re.compile(r"^(os\.(listdir|scandir|walk)|glob\.i?glob)$")
_PATHS = frozenset({"read_text", "read_bytes", "open"})
_FOLDERS = frozenset({"iterdir", "rglob", "glob"})
_MAPPED = ("mmap_mode", "mmap")


def find(module: Module) -> Iterator[Hit]:
    """Yield what is opened for each sample although others are in it too."""
    samples = samples_of(module)
    for function, call in samples.calls():
        if call.stored or _stays_open(samples, function, call) or _parsed(call):
            continue
        name = call.name or (call.attr if isinstance(call.node.func, ast.Name) else "")
        lists = _LISTS.match(name) is not None
        if lists or _CONTAINERS.match(name) or _FILES.match(name):
            given = arguments(call.node)[:1]
        elif call.attr in _PATHS | _FOLDERS and call.owner is not None and not name:
            lists, given = call.attr in _FOLDERS, [call.owner]
        else:
            continue
        if not given or any(keyword(call.node, item) is not None for item in _MAPPED) or _is_written(call):
            continue
        if samples.is_fixed(given[0], function) and not isinstance(given[0], ast.Constant | ast.JoinedStr):
            if isinstance(given[0], ast.Name) and given[0].id in dict(_opened(function.node)):
                continue  # json.load(file): the open before it is named
            doing = "lists this folder" if lists else "opens this again"
            yield Hit(call.node, f"every sample {doing}: {text_of(call.node)}", call.attr)
        elif _CONTAINERS.match(name) and _takes_one(samples, function, call):
            message = f"every sample reopens a file that holds many samples: {text_of(call.node)}"
            yield Hit(call.node, message, call.attr)

    yield from _arrays(module, samples)


def _arrays(module: Module, samples: Samples) -> Iterator[Hit]:
    """Yield arrays that are read from an archive of NumPy's for each sample."""
    archives = {
        (assign.context.function.owner, assign.target)
        for assign in module.assigns
        if assign.context.function is not None and module.name_called(assign.expression) == "numpy.load"
    }
    if not archives:
        return
    for function in samples.functions:
        for part in ast.walk(function.node):
            if (
                isinstance(part, ast.Subscript)
                and isinstance(literal(part.slice), str)
                and (function.owner, path_of(part.value)) in archives
            ):
                yield Hit(part, f"every sample reads this array from its file again: {text_of(part)}", fix=_KEEP)


def _is_written(call: SourceCall) -> bool:
    """Return whether a file is opened to write."""
    said = literal(argument(call.node, "mode", 1))
    return isinstance(said, str) and said[:1] in ("w", "a", "x") and call.attr in ("open", "File")


def _parsed(call: SourceCall) -> bool:
    """Return whether another call reads what this one opens, and is found itself: ``json.load(open(path))``."""
    return call.attr == "open" and call.user is not None and _FILES.match(call.user.name) is not None


def _opened(node: ast.AST) -> list[tuple[str, ast.expr]]:
    """Return the names that files are opened as, each with what opens it."""
    return [
        (part.optional_vars.id, part.context_expr)
        for part in ast.walk(node)
        if isinstance(part, ast.withitem) and isinstance(part.optional_vars, ast.Name)
    ]


def _stays_open(samples: Samples, function: SourceFunction, call: SourceCall) -> bool:
    """Return whether the handle outlives the sample: in an attribute or a cache, by whoever asked for it."""
    if call.user is not None and call.user.attr in ("append", "setdefault", "enter_context"):
        return True
    own = samples.module.text_of(function)
    if call.target and re.search(rf"(self\.\w+|\])\s*=\s*{re.escape(call.target)}\b", own):
        return True
    return function not in samples.roots and any(
        item.stored and function in item.callees for item in samples.module.calls
    )


def _takes_one(samples: Samples, function: SourceFunction, call: SourceCall) -> bool:
    """Return whether one entry of a container is taken, by a key that follows from the sample."""
    names = {call.target} - {""}
    names |= {name for name, opened in _opened(function.node) if opened is call.node}
    for part in ast.walk(function.node):
        if isinstance(part, ast.Subscript):
            holder, key = part.value, part.slice
        elif isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and part.func.attr == "read_region":
            holder, key = part.func.value, part.args[0] if part.args else part
        else:
            continue
        if names_in(holder) & names and samples.follows(key, function):
            return True
    return False

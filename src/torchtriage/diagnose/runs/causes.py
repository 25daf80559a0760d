"""What a thread was doing outside torch's operators: by the library frames below the user's line, and by what it calls.

The first cause that fits is taken. What none fits is Python of the user's own, or an operator.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchtriage.core.finding import Finding, Fix
from torchtriage.diagnose.runs.samples import Position


@dataclass(frozen=True)
class Cause:
    """A kind of work that does not belong into every step.

    ``frames`` : a pattern of ``path:function`` of library frames. ``calls`` : names of functions written in C, which
    have no frame. ``gain`` : what part of its time a fix gives back.
    """

    code: str
    name: str
    family: str
    title: str
    kind: str
    what: str
    fix: Fix
    frames: str = r"(?!)"
    calls: frozenset[str] = frozenset()
    gain: tuple[float, float] = (0.6, 1.0)
    looks: str = ""
    slow: str = ""
    leave: str = ""
    cost: str = ""

    def finding(self, **seen: Any) -> Finding:
        """Return a finding of this cause; ``seen`` : what :class:`Finding` holds beside code, words and fix."""
        return Finding(code=self.code, name=self.name, family=self.family, title=self.title, fix=self.fix, **seen)

    @property
    def _of_looks(self) -> str:
        return (
            "the share of the stack samples, in steady steps, that find the loop's thread there;"
            f" {self.gain[0]:.0%} of it at the low end, {self.gain[1]:.0%} at the high end, plus or minus the sampling"
            " error."
        )

    @property
    def page(self) -> str:
        """Its page in the catalogue; empty where other parts have one for the code."""
        if not self.looks:
            return ""
        return f"""{self.title}.

Looks like: {self.looks}
Slow because: {self.slow}
Cost: {self.cost or self._of_looks}
Fix: {self.fix.text}
Leave it when: {self.leave}
Source: stack samples taken by ``torchtriage run``; see ``docs/run.md``.
"""


PYTHON, SLEEPING = "Python", "sleeping"


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


CAUSES: tuple[Cause, ...] = (
    Cause(
        "HST102",
        "checkpoint-in-step",
        "host",
        "A checkpoint is written in every step",
        "files",
        "saving and loading with torch",
        Fix(
            "Save every few hundred steps or once an epoch, and the best one only when it improves.",
            "if step % save_every == 0:\n    torch.save(state, path)",
            "https://docs.pytorch.org/tutorials/recipes/recipes/async_checkpoint.html",
        ),
        r"^torch/serialization\.py:|^safetensors/|^torch/distributed/checkpoint/|^joblib/numpy_pickle",
        gain=(0.9, 1.0),
        looks="``torch.save`` or ``torch.load`` below a line that every step runs.",
        slow="all weights are copied and written to a file while nothing else runs.",
        leave="the loop's purpose is to write these files.",
    ),
    Cause(
        "HST115",
        "report-in-step",
        "host",
        "Logging or progress output in every step",
        PYTHON,
        "logging, printing or formatting",
        Fix(
            "Report every N steps, keep the values as tensors until then, and let the log buffer.",
            "if step % log_every == 0:\n    logger.info(...)",
        ),
        r"^torch/_tensor_str\.py:|^logging/|^tqdm/|^rich/|^torch/utils/tensorboard|^tensorboardX?/|^wandb/|^mlflow/|^pprint\.py",
        _names("print"),
        gain=(0.7, 1.0),
        looks="``print``, ``logging``, a progress bar or the formatting of tensors takes a good part of the step.",
        slow="text is formatted and written, often flushed, before the next step begins.",
        leave="steps are few and long.",
    ),
    Cause(
        "HST122",
        "pictures-in-step",
        "host",
        "Figures are rendered in every step",
        PYTHON,
        "drawing figures",
        Fix(
            "Draw every few hundred steps, and keep the numbers until then.",
            "if step % draw_every == 0:\n    plt.plot(losses)",
        ),
        r"^(matplotlib|mpl_toolkits|pylab|seaborn|plotly|bokeh|visdom)\b",
        gain=(0.8, 1.0),
    ),
    Cause(
        "HST125",
        "arguments-checked",
        "host",
        "Distributions check their arguments in every step",
        "checking arguments",
        "checking the arguments of distributions",
        Fix(
            "Switch the checks off once the program works.",
            "torch.distributions.Distribution.set_default_validate_args(False)  # at the top of the script",
            "https://docs.pytorch.org/docs/stable/distributions.html",
        ),
        r"^torch/distributions/(constraints\.py:|distribution\.py:(Distribution\.)?(__init__|_validate_sample)$)",
        looks="``torch.distributions`` makes a ``Categorical``, ``Normal`` or another distribution in the step, whose"
        " constructor tests each parameter (and ``log_prob`` each value) against a constraint.",
        slow="each test is several operators and a read of their result, which on a device waits for all work before"
        " it; they account for four fifths of a small ``Categorical``.",
        leave="the arguments are not known to be valid: without the checks NaN passes silently.",
    ),
    Cause(
        "HST109",
        "deepcopy-in-step",
        "host",
        "Objects are deep-copied in every step",
        PYTHON,
        "copy.deepcopy",
        Fix("Copy once and update in place (``torch._foreach_lerp_`` for averages), or share what never changes."),
        r"^copy\.py:",
        _names("deepcopy"),
        gain=(0.7, 1.0),
        looks="``copy.deepcopy`` below a line that every step runs.",
        slow="every object below is built again in Python.",
        leave="the copy is changed in each step and nothing smaller would do.",
    ),
    Cause(
        "HST104",
        "waiting-in-step",
        "host",
        "Every step starts a process or waits for one",
        "waiting for a process",
        "starting a process and waiting for it",
        Fix("Use a library call in this process, or start the helper once and talk to it."),
        r"^subprocess\.py:|^multiprocessing/(popen|process|context|managers|pool)",
        _names("os.system os.wait os.waitpid os.wait3 os.wait4"),
        gain=(0.7, 1.0),
        looks="``subprocess`` or ``multiprocessing`` starts processes inside the step.",
        slow="a process takes milliseconds to start, a Python interpreter a hundred.",
        leave="the process does the step's own work.",
    ),
    Cause(
        "HST105",
        "built-in-step",
        "host",
        "Objects are rebuilt in every step",
        PYTHON,
        "making modules, optimizers or loaders",
        Fix("Make it once before the loop and use it again.", "model = Net().to(device)  # before the loop"),
        r"^torch/nn/init\.py:|^torch/nn/modules/(?!module\.py)[^:]*:.*\.(__init__|reset_parameters)$"
        r"|^torch/optim/[^:]*:.*__init__$|^torch/utils/data/(dataloader|sampler)\.py:\w+\.__init__$"
        r"|^transformers/.*:.*from_pretrained$",
        gain=(0.8, 1.0),
        looks="a module, an optimizer, a loader or a pool is constructed inside the step.",
        slow="weights are drawn again, memory is allocated, state and caches are lost.",
        leave="each step really needs a fresh one (folds, ensembles).",
    ),
    Cause(
        "HST116",
        "network-in-step",
        "host",
        "The step waits for the network",
        "network",
        "the network",
        Fix("Send requests ahead of time in another thread, batch them, and keep the connection open."),
        r"^(socket|ssl|http/|urllib/request|ftplib|smtplib)|^(requests|urllib3|httpx|httpcore|aiohttp|grpc|redis|pymongo|psycopg2?)/",
        _names("recv recv_into sendall getaddrinfo"),
        gain=(0.5, 1.0),
        looks="sockets are read or written inside the step.",
        slow="a round trip takes longer than the work between two requests.",
        leave="the answer depends on this very step.",
    ),
    Cause(
        "HST110",
        "image-work",
        "host",
        "Images are decoded or transformed on the loop's thread",
        PYTHON,
        "image or audio work on the CPU",
        Fix(
            "Resize first, so that everything after it works on fewer pixels; decode in DataLoader workers; keep"
            " what never changes decoded.",
            "image = image.resize(size)  # first\nloader = DataLoader(dataset, num_workers=4)",
        ),
        r"^(PIL|cv2|torchvision/(transforms|io)|skimage|imageio|scipy/ndimage|torchaudio|librosa|soundfile|albumentations|kornia|decord)\b",
        gain=(0.5, 0.95),
        looks="PIL, OpenCV, torchvision, scipy.ndimage or audio libraries run below a line that every step runs.",
        slow="the model waits while images are processed one after the other.",
        leave="that is the step's own work and is small already.",
    ),
    Cause(
        "HST111",
        "table-rows-in-step",
        "host",
        "A DataFrame is processed row by row",
        PYTHON,
        "pandas",
        Fix("Convert the columns to tensors once before the loop and index those."),
        r"^(pandas|polars|pyarrow)/",
        looks="pandas below a line that every step runs.",
        slow="each access to a row or a cell of a frame makes Python objects.",
        leave="it is one vectorised call.",
    ),
    Cause(
        "MSR045",
        "profiler-overhead",
        "measure",
        "A profiler or debugger is left on",
        "profiler",
        "the script's own profiler",
        Fix("Profile a few steps with a schedule, and switch it off for the rest."),
        # optimizers and loaders name their parts by record_function, whether somebody profiles or not
        r"^torch/profiler/|^torch/autograd/profiler(_\w+)?\.py:(?!record_function|__(init|enter|exit)__$)"
        r"|^(cProfile|profile|tracemalloc|pdb|bdb|trace|pstats)\.py:",
        gain=(0.9, 1.0),
    ),
    Cause(
        "HST103",
        "parsing-in-step",
        "host",
        "Text or bytes are parsed and packed in every step",
        PYTHON,
        "JSON, pickle, regular expressions, compression or hashing",
        Fix("Parse once before the loop and keep the result; compile regular expressions once; keep arrays as arrays."),
        r"^(json/|re/|re\.py|sre_\w+\.py|pickle\.py|_compat_pickle|base64\.py|csv\.py|xml/|html/|gzip\.py|bz2\.py|lzma\.py|hashlib\.py|hmac\.py|uuid\.py|configparser|string\.py|textwrap\.py|difflib\.py|_strptime\.py|datetime\.py)|^(yaml|ruamel|toml|msgpack|orjson|bs4|lxml)/",
        _names(
            "dumps loads dump load sha256 sha1 md5 hexdigest digest b64encode b64decode compress decompress findall"
            " finditer fullmatch re.sub"
        ),
        gain=(0.5, 1.0),
        looks="``json``, ``pickle``, ``re``, ``base64``, ``hashlib`` or ``zlib`` take a good part of the step.",
        slow="every object passes through Python and bytes and back.",
        leave="the messages are the step's own input or output.",
    ),
    Cause(
        "HST112",
        "lock-wait",
        "host",
        "The event loop has nothing to run",
        "waiting in the event loop",
        "waiting in the event loop",
        Fix(
            "Find what the coroutine that runs the steps awaits, and start it earlier (asyncio.create_task) or several"
            " at once (asyncio.gather). The line is the one that runs the event loop: no stack shows which coroutine"
            " waits."
        ),
        r"^asyncio/",
        gain=(0.0, 0.9),
    ),
    Cause(
        "HST112",
        "lock-wait",
        "host",
        "The loop waits for other threads",
        "waiting for a lock or a queue",
        "waiting for a lock, a queue or another thread",
        Fix(
            "Hold the lock for less time, prefetch through a bounded queue, and let waiting threads block instead of"
            " poll."
        ),
        r"^(threading|queue|selectors|signal)\.py:|^concurrent/futures/"
        r"|^multiprocessing/(connection|queues|synchronize|shared_memory|reduction)",
        _names("acquire select.select SimpleQueue.get SimpleQueue.put"),
        gain=(0.0, 0.9),
        looks="the loop's thread blocks in ``acquire``, ``get``, ``wait`` or ``join``.",
        slow="other work holds what the step needs.",
        leave="the loop is meant to wait: for requests, for a sensor.",
    ),
    Cause(
        "HST101",
        "file-io-in-step",
        "host",
        "Every step opens, reads or flushes files",
        "files",
        "files",
        Fix(
            "Open files once, buffer writes and flush rarely; keep what is read again, and parse text once, not in the"
            " loop.",
            'images = np.load("images.npy", mmap_mode="r")  # written once: reading it parses nothing\n'
            'log = open(path, "a")  # once, before the loop',
        ),
        r"^(tempfile|shutil|pathlib|glob|fnmatch|zipfile|tarfile|fileinput|codecs|os|genericpath|posixpath)\.py:|^numpy/lib/_?(npyio|format)|^h5py/"
        r"|^(sqlite3|dbm|shelve)|^importlib/resources",
        _names(
            "open write writelines flush fsync fdatasync read readline readlines close unlink os.remove os.rename"
            " os.replace makedirs mkdir rmdir os.stat listdir scandir execute"
            " executemany commit fetchall fetchone truncate"
        ),
        gain=(0.7, 1.0),
        looks="``open``, ``fsync``, ``flush``, ``read`` or a database below a line that every step runs.",
        slow="each call goes to the system, ``fsync`` to the disk, while nothing else runs.",
        leave="the data must be safe on disk before the next step.",
    ),
    Cause(
        "HST113",
        "errors-in-step",
        "host",
        "Warnings or exceptions in every step",
        PYTHON,
        "warnings, exceptions and stack traces",
        Fix("Test the condition first, and fix the cause of the warning."),
        r"^(traceback|warnings|linecache|inspect|tokenize|contextlib\.py:.*__exit__)",
        _names("format_exc extract_stack"),
        gain=(0.7, 1.0),
        looks="``traceback``, ``warnings`` or ``inspect`` take a good part of the step.",
        slow="a stack is walked and source files are read.",
        leave="never, if it is every step.",
    ),
    Cause(
        "HST021",
        "gc-pause",
        "host",
        "Garbage collection stalls the step",
        "garbage collection",
        "garbage collection",
        Fix("Leave garbage collection to Python, or call gc.freeze() on long-lived objects before the loop."),
        calls=_names("collect"),
        gain=(0.9, 1.0),
    ),
    Cause(
        "MEM028",
        "empty-cache-in-loop",
        "alloc",
        "The allocator's cache is emptied inside the loop",
        PYTHON,
        "empty_cache",
        Fix("Call it once, or not at all."),
        r"^torch/cuda/memory\.py:empty_cache",
        gain=(0.9, 1.0),
    ),
    Cause(
        "HST104",
        "waiting-in-step",
        "host",
        "The loop sleeps or polls",
        SLEEPING,
        SLEEPING,
        Fix("Wait for the event itself (``queue.get``, ``event.wait``) instead of sleeping and polling."),
        calls=_names("sleep"),
        gain=(0.8, 1.0),
        looks="``time.sleep`` inside the step.",
        slow="on average half of each sleep passes after the event that it waited for.",
        leave="the loop is paced: a control rate, a rate limit.",
    ),
)

SCHEDULED = replace(
    next(cause for cause in CAUSES if cause.code == "MSR045"),
    title="The script's profiler takes a good part of the steps",
    fix=Fix(
        "Profile less often: a longer ``wait`` or a small ``repeat`` in the schedule, and less work on each trace."
    ),
)
FILES = next(cause for cause in CAUSES if cause.code == "HST101")
READ_AHEAD = replace(
    FILES,
    title="Every step waits for another file",
    fix=Fix(
        "Each step reads another file: read ahead, in the workers of a DataLoader or in a thread that fills a queue.",
        "loader = DataLoader(files, num_workers=2)  # the data set's __getitem__ reads one file",
        "https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading",
    ),
    gain=(0.5, 1.0),
)
SAME_OR_ANOTHER = replace(
    READ_AHEAD,
    title="Every step waits for a file",
    fix=Fix(
        "If it is the same file in each step, open it once and keep the contents; if each step needs another one, read"
        " ahead, in the workers of a DataLoader or in a thread that fills a queue.",
        link=READ_AHEAD.fix.link,
    ),
)
_MATCHERS = [(cause, re.compile(cause.frames)) for cause in CAUSES]
IN_MEMORY = re.compile(r"(^|\.)(BytesIO|StringIO)\.")
_COMPILES = re.compile(
    r"^torch/_dynamo/(convert_frame|symbolic_convert|bytecode_transformation)|^torch/_inductor/(compile_fx|scheduler|codecache\.py:.*compile)"
    r"|^triton/compiler|^torch/_functorch/aot_autograd|^torch/fx/"
)
_IMPORTS = re.compile(r"^<frozen importlib|^importlib/__init__")
_LOADER = re.compile(r"^torch/utils/data/(dataloader|_utils)")


def kind_of_library(frames: Sequence[Position]) -> str:
    """Return what all library frames of a stack show by themselves: compilation, imports, ours, or nothing."""
    for position in frames:
        library = position.library
        if not library:
            continue
        if library.startswith("torchtriage/"):
            return "torchtriage"
        if _COMPILES.match(f"{library}:{position.function}"):
            return "compilation"
        if _IMPORTS.match(library):
            return "imports"
    return ""


def cause_of(below: Sequence[Position], call: str) -> Cause | None:
    """Return the first cause that the frames below a line, or the C function that it calls, stand for."""
    words = [f"{position.library}:{position.function}" for position in below]
    if any(_LOADER.match(word) for word in words):
        return None  # the loader's own patterns judge it
    parts = () if IN_MEMORY.search(call) else call.split(".")
    names = {".".join(parts[-n:]) for n in (1, 2) if parts}
    return next((cause for cause, matcher in _MATCHERS if any(map(matcher.match, words)) or names & cause.calls), None)

"""Something that should be made once is made in every step, or for every sample.

Looks like: an optimizer, a ``DataLoader``, layers, transforms, a pool of threads or processes, or
    ``from_pretrained`` in a loop of steps, in ``forward``, or in what they call; a tokenizer, a filter bank, a
    pipeline of augmentations or a client in ``__getitem__`` or a collate function.
Slow because: building costs the host from tens of microseconds to seconds; layers get new weights,
    an optimizer forgets its moments, a pool starts its workers again.
Fix: build it before the loop, or in ``__init__``.
Quiet when: it is kept (``self.x = ...``, an entry of a cache), or made once per epoch, fold or trial.
Source: PyTorch performance tuning guide; Python documentation of ``concurrent.futures``.
"""

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, Severity, SourceCall, text_of
from torchtriage.diagnose.lint.samples import samples_of
from torchtriage.diagnose.lint.torch_names import LOADERS

RULE = Rule("HST105", "built-in-step", "host", "Objects are rebuilt in every step", "medium", over=("LCH105", "HST134"))

FIX = Fix(
    text="Build it once, before the loop.",
    code="""pool = ThreadPoolExecutor(4)               # here, once
resize = transforms.Resize(224)
for batch in loader:
    step(batch, pool, resize)""",
    link="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
)

_WEIGHTS = re.compile(
    r"^torch\.nn\.(Linear|Bilinear|Conv\w+|Embedding\w*|LSTM\w*|GRU\w*|RNN\w*|Transformer\w*|MultiheadAttention"
    r"|BatchNorm\w*|LayerNorm|GroupNorm|InstanceNorm\w*|Sequential)$"
)
_POOLS = re.compile(
    r"^concurrent\.futures\.(thread\.|process\.)?(ThreadPoolExecutor|ProcessPoolExecutor)$"
    r"|^multiprocessing\.(pool\.)?(Pool|ThreadPool|Process|Manager)$|^torch\.multiprocessing\.(Pool|Process)$"
)
_TRANSFORMS = re.compile(
    r"^(torchvision\.transforms(\.v2)?|torchaudio\.transforms|albumentations|kornia\.augmentation)\.[A-Z]\w+$"
)

_STATES = re.compile(r"^torch\.load$|(^|\.)load_file$")
_HEAVY_PARTS = re.compile(
    r"^torch\.utils\.tensorboard\.(writer\.)?SummaryWriter$|^wandb\.init$|^evaluate\.load$|^datasets\.load_metric$"
    r"|^lpips\.LPIPS$|^torchmetrics\.image\.\w+\.(FrechetInceptionDistance|LearnedPerceptualImagePatchSimilarity|InceptionScore)$"
    r"|^torchvision\.models\.(\w+\.)*[a-z]+\d[\w]*$|^timm\.create_model$|^torch\.hub\.load$|^spacy\.load$|^onnxruntime\.InferenceSession$"
)

# kernels, weights, vocabularies, checks of arguments, connections: more work than the sample itself
_SAMPLE_PARTS = re.compile(
    r"^torchaudio\.transforms\.(Resample|MelSpectrogram|MFCC|LFCC|MelScale|Spectrogram|InverseMelScale|GriffinLim)$"
    r"|^(albumentations|audiomentations)\.(core\.\w+\.)?Compose$|\.from_pretrained$|^(spacy|whisper)\.load(_model)?$"
    r"|^(boto3|redis|pymongo|psycopg2?|pymysql|MySQLdb)\.(client|resource|Session|Redis|MongoClient|connect)$"
    r"|^google\.cloud\.storage\.Client$|^sqlalchemy\.create_engine$|^s3fs\.S3FileSystem$|^librosa\.filters\.mel$"
    r"|^torchvision\.models\.[\w.]+$|^timm\.create_model$|^torch\.(jit|hub)\.load$|^onnxruntime\.InferenceSession$"
    r"|^cv2\.(CascadeClassifier|SIFT_create|ORB_create)$|^mediapipe\.|^tiktoken\.(get_encoding|encoding_for_model)$"
)


def find(module: Module) -> Iterator[Hit]:
    """Yield constructions of hot code whose result is not kept."""
    for call in module.calls:
        function = call.context.function
        if not call.context.hot or not call.attr or _is_stored(call) or (function and function.name == "__init__"):
            continue
        if call.attr == "load_state_dict" and (state := _loaded(module, call)) is not None:
            yield Hit(state, f"weights are loaded in every step: {text_of(state)}", "load", severity="high")
        what, severity = _built(module, call)
        if what:
            yield Hit(call.node, f"{what} in every step: {text_of(call.node)}", call.attr, severity=severity)
    for _, call in samples_of(module).calls():
        if _SAMPLE_PARTS.search(call.name) and not _is_stored(call):
            yield Hit(call.node, f"this is created for every sample: {text_of(call.node)}", call.attr)


def _built(module: Module, call: SourceCall) -> tuple[str, Severity | None]:
    name = call.name
    if name.startswith("torch.optim.") and call.attr[:1].isupper() and "lr_scheduler" not in name:
        if not call.arguments or call.arguments[0].kind != "params":
            return "", None  # of a tensor that this step itself has made
        return "an optimizer is created, and its state lost,", None
    if name in LOADERS:
        return "a loader is created", "low"
    if _WEIGHTS.match(name):
        return "a layer is created, with new weights,", None
    if _POOLS.match(name):
        return "a pool or process is started", None
    if _TRANSFORMS.match(name):
        return "a transform is created", "low"
    if call.attr == "from_pretrained":
        return "a model or tokenizer is loaded", "high"
    if _HEAVY_PARTS.search(name):
        return "this is created", "medium"
    made = module.classes.get(call.attr) if isinstance(call.node.func, ast.Name) else None
    if made is not None and made.is_module and call.context.step_loop is not None:
        return "a model is created", "low"
    return "", None


def _loaded(module: Module, call: SourceCall) -> ast.Call | None:
    """Return what reads a state from its file, here and now."""
    given = call.node.args[0] if call.node.args else None
    made = [given]
    if isinstance(given, ast.Name):
        made = list(module.made_in(call.context.function, given.id))
    calls = [item for item in made if isinstance(item, ast.Call)]
    return next((item for item in calls if _STATES.search(module.name_of(item.func))), None)


def _is_stored(call: SourceCall) -> bool:
    """Return whether the result outlives the step: in an attribute, or in a container."""
    if call.user is not None and call.user.attr in ("append", "setdefault", "add_module"):
        return True
    return call.stored

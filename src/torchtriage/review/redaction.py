"""Names that may leave this machine: those of PyTorch and its libraries; a number for the rest.

What is not known to be public is private: the user's modules, functions, files, annotations,
operators and kernels become ``module#12``, where the number is the name's place in the recording.
One name of a recording always gets one number, and no number can be turned back without the
recording.
"""

from __future__ import annotations

import re
from functools import cached_property

from torchtriage.names import elide, short_name, visible
from torchtriage.trace import Kind, Trace
from torchtriage.trace.frames import frame_label, is_user_frame, parse_frame

__all__ = ["Names"]

WIDTH = 80
_MODULE = "nn.Module: "

_TORCH_NN = """
AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveLogSoftmaxWithLoss
AdaptiveMaxPool1d AdaptiveMaxPool2d AdaptiveMaxPool3d AlphaDropout AvgPool1d AvgPool2d AvgPool3d
BCELoss BCEWithLogitsLoss BatchNorm1d BatchNorm2d BatchNorm3d Bilinear CELU CTCLoss ChannelShuffle
CircularPad1d CircularPad2d CircularPad3d ConstantPad1d ConstantPad2d ConstantPad3d Conv1d Conv2d
Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d CosineEmbeddingLoss CosineSimilarity
CrossEntropyLoss CrossMapLRN2d DataParallel DistributedDataParallel Dropout Dropout1d Dropout2d
Dropout3d ELU Embedding EmbeddingBag FeatureAlphaDropout Flatten Fold FractionalMaxPool2d
FractionalMaxPool3d GELU GLU GRU GRUCell GaussianNLLLoss GroupNorm Hardshrink Hardsigmoid Hardswish
Hardtanh HingeEmbeddingLoss HuberLoss Identity InstanceNorm1d InstanceNorm2d InstanceNorm3d
KLDivLoss L1Loss LPPool1d LPPool2d LPPool3d LSTM LSTMCell LayerNorm LeakyReLU Linear
LinearCrossEntropyLoss LocalResponseNorm LogSigmoid LogSoftmax MSELoss MarginRankingLoss MaxPool1d
MaxPool2d MaxPool3d MaxUnpool1d MaxUnpool2d MaxUnpool3d Mish Module ModuleDict ModuleList
MultiLabelMarginLoss MultiLabelSoftMarginLoss MultiMarginLoss MultiheadAttention NLLLoss NLLLoss2d
PReLU PairwiseDistance ParameterDict ParameterList PixelShuffle PixelUnshuffle PoissonNLLLoss
RMSNorm RNN RNNCell RReLU ReLU ReLU6 ReflectionPad1d ReflectionPad2d ReflectionPad3d
ReplicationPad1d ReplicationPad2d ReplicationPad3d SELU Sequential SiLU Sigmoid SmoothL1Loss
SoftMarginLoss Softmax Softmax2d Softmin Softplus Softshrink Softsign SyncBatchNorm Tanh Tanhshrink
Threshold Transformer TransformerDecoder TransformerDecoderLayer TransformerEncoder
TransformerEncoderLayer TripletMarginLoss TripletMarginWithDistanceLoss Unflatten Unfold Upsample
UpsamplingBilinear2d UpsamplingNearest2d ZeroPad1d ZeroPad2d ZeroPad3d
"""
_MODULES = frozenset(_TORCH_NN.split())
"""Public wherever they come from."""

_OPTIMIZERS = (
    "ASGD|Adadelta|Adafactor|Adagrad|AdamW?|Adamax|LBFGS|Muon|NAdam|Optimizer|RAdam|RMSprop|Rprop"
    "|SGD|SparseAdam"
)
_SPACES = (
    "aten|prim|prims|c10d|c10d_functional|_c10d_functional|torchvision|torchaudio|quantized|mkldnn"
    "|inductor|xla|rngprims|profiler|onednn|cudnn"
)
_OP = re.compile(
    rf"(?:autograd::engine::evaluate_function: )?(?:(?:{_SPACES})::\w+(?:\.\w+)?"
    r"|[A-Z]\w*Backward\d+|torch::autograd::(?:AccumulateGrad|CopyBackwards|CopySlices|GraphRoot)"
    r"|detach_?|TorchDynamo Cache Lookup|Pregraph bytecode|CompiledFunction(?:Backward)?)"
)
_ANNOTATION = re.compile(
    r"ProfilerStep#\d+|PyTorch Profiler \(\d+\)"
    rf"|Optimizer\.(?:step|zero_grad)#(?:{_OPTIMIZERS})\.(?:step|zero_grad)"
    r"|enumerate\(DataLoader\)#_(?:Single|Multi)ProcessDataLoaderIter\.__next__"
    r"|DistributedDataParallel\.\w+|DataParallel\.\w+"
    r"|(?:nccl|gloo|mpi|ucc):\w+|Torch-Compiled Region: \d+/\d+|TorchDynamo Cache Lookup"
    r"|## Call CompiledFxGraph \w+ ##"
)
_KERNEL = re.compile(
    r"(?:void |std::enable_if\S* )?(?:at::|at_cuda_detail::|c10::|cub::|thrust::|cutlass|cublas"
    r"|cudnn|cute::|flash::|pytorch_flash::|fmha_|gemv?[KN2s_]|splitKreduce|ampere_|turing_|volta_"
    r"|sm\d\d_|hopper_|nvjet_|ncclDevKernel|ncclKernel|triton_(?:poi|red|per|tem|mm|for)_|Cijk_"
    r"|_ZN2at|_ZN3c10|rocprim::|miopen|MIOpen)|Mem(?:cpy|set) "
)
_CALL = re.compile(r"(?:cuda|hip|cu|nccl|roc|hsa_)[A-Z_]\w*|cudaLaunchKernel\w*")
_BUILTIN = re.compile(
    r"<(?:built-in )?(?:function|method) '?[\w.]+'?(?: of '?(?:module|type|str|bytes|bytearray|dict"
    r"|list|tuple|set|frozenset|int|float|bool|generator|memoryview|Tensor|Parameter|torch[\w.]*"
    r"|_thread\.\w+|_io\.\w+|weakref\S*)'? objects?(?: at 0x[0-9a-f]+)?)?>"
)
_KNOWN_BUILTINS = re.compile(
    r"<built-in function (?:[a-z_]+attr|len|isinstance|issubclass|iter|next|id|max|min|sum|sorted"
    r"|callable|perf_counter(?:_ns)?|time(?:_ns)?|sleep|print|repr|hash|abs|all|any|range|zip|round"
    r"|get_ident|allocate_lock|linear|conv\dd|gelu|scaled_dot_product_attention)>"
)
_INSTALLED = re.compile(r".*(?:site|dist)-packages/")
_PUBLIC_FILE = re.compile(
    r"(?:torch|torchvision|torchaudio|torchrec|transformers|diffusers|timm|accelerate|lightning"
    r"|pytorch_lightning|numpy|PIL|scipy|pandas|sklearn|cv2|tqdm|triton|functorch|vllm|sglang"
    r"|xformers|flash_attn|apex|deepspeed|importlib|asyncio|multiprocessing|concurrent|logging|json"
    r"|collections|ctypes|encodings|unittest)/[\w./-]+|(?:_collections_abc|_weakrefset|[a-z]\w*)\.py"
    r"|<frozen [\w.]+>|<string>|<eval_with_key>\S*"
)
"""As the profiler writes it, without the folder of installed packages."""
_PLACEHOLDER = {
    Kind.OP: "op", Kind.ANNOTATION: "annotation", Kind.GPU_ANNOTATION: "annotation",
    Kind.RUNTIME: "call", Kind.KERNEL: "kernel", Kind.MEMCPY: "copy", Kind.MEMSET: "set",
    Kind.PYTHON: "function",
}  # fmt: skip


class Names:
    """Says what the rows of one recording are called in evidence.

    Without ``redact`` all names are as recorded, shortened and safe to print.
    """

    def __init__(self, trace: Trace, *, redact: bool = True) -> None:
        """Name the rows of ``trace``."""
        self.trace = trace
        self.redact = redact
        self._known: dict[tuple[int, int], str] = {}

    def of(self, row: int) -> str:
        """Return the name of a row, at most 80 characters, all of them printable."""
        key = int(self.trace.kind[row]), int(self.trace.name[row])
        if key not in self._known:
            self._known[key] = elide(visible(self._of(*key)), WIDTH)
        return self._known[key]

    def lane(self, lane: int) -> str:
        """Return what a thread or stream is called."""
        one = self.trace.lanes[lane]
        if one.kind == "stream":
            return f"device {one.device} stream {one.stream}"
        if not self.redact:
            return elide(visible(self.trace.lane_label(lane)), WIDTH)
        return f"thread {self._threads[lane]}"

    @cached_property
    def _threads(self) -> dict[int, int]:
        hosts = [at for at, one in enumerate(self.trace.lanes) if one.kind != "stream"]
        return {lane: number for number, lane in enumerate(hosts, 1)}

    def _of(self, kind: int, code: int) -> str:
        name = self.trace.names[code]
        what = Kind(kind)
        if what == Kind.PYTHON:
            return self._python(name, code).removeprefix("<").removesuffix(">")
        if not self.redact or self._is_public(what, name):
            return short_name(name) if what == Kind.KERNEL else frame_label(name)
        return f"{_PLACEHOLDER.get(what, 'event')}#{code}"

    @staticmethod
    def _is_public(kind: Kind, name: str) -> bool:
        if kind in (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET):
            return _KERNEL.match(name) is not None
        if kind == Kind.RUNTIME:
            return _CALL.fullmatch(name) is not None
        return (_OP.fullmatch(name) or _ANNOTATION.fullmatch(name)) is not None

    def _python(self, name: str, code: int) -> str:
        if not self.redact:
            return frame_label(name)
        if name.startswith(_MODULE):
            one, _, number = name[len(_MODULE) :].rpartition("_")
            return name if one in _MODULES and number.isdecimal() else f"module#{code}"
        frame = parse_frame(name)
        if frame is None:
            public = _BUILTIN.fullmatch(name) and (
                " of " in name or _KNOWN_BUILTINS.fullmatch(name)
            )
            return frame_label(name) if public else f"builtin#{code}"
        file = _INSTALLED.sub("", frame.file)
        if not is_user_frame(name) and _PUBLIC_FILE.fullmatch(file):
            return f"{file}({frame.line}): {frame.function}"
        return f"function#{code} in file#{self._files[frame.file]} line {frame.line}"

    @cached_property
    def _files(self) -> dict[str, int]:
        """Each Python file, numbered by the place of the first name that has it."""
        found: dict[str, int] = {}
        for code, name in enumerate(self.trace.names):
            frame = parse_frame(name)
            if frame is not None:
                found.setdefault(frame.file, code)
        return found

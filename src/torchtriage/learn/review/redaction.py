"""Names that may leave this machine: those of PyTorch and its libraries; a number for the rest.

What is not known to be public is private: the user's modules, functions, files, annotations,
operators and kernels become ``module#12``, where the number is the name's place in the recording.
One name of a recording always gets one number, and no number can be turned back without the
recording.
"""

from __future__ import annotations

import re
from functools import cached_property

from torchtriage.core.names import elide, short_name, visible
from torchtriage.core.trace import Kind, Trace
from torchtriage.core.trace.frames import frame_label, is_user_frame, parse_frame

__all__ = ["WIDTH", "RedactedNames"]

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
    "ASGD|Adadelta|Adafactor|Adagrad|AdamW?|Adamax|LBFGS|Muon|NAdam|Optimizer|RAdam|RMSprop|Rprop|SGD|SparseAdam"
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
_COLLECTIVES = (
    "_?all_?gather(?:_base|_into_tensor_coalesced)?|all_?reduce(?:_coalesced|_barrier)?"
    "|_?reduce_scatter(?:_base|_tensor_coalesced)?|all_?to_?all(?:v|_base)?|broadcast|_?reduce"
    "|gather|scatter|send|recv|(?:monitored_)?barrier|coalesced"
)
_ANNOTATION = re.compile(
    r"ProfilerStep#\d+|PyTorch Profiler \(\d+\)"
    rf"|Optimizer\.(?:step|zero_grad)#(?:{_OPTIMIZERS})\.(?:step|zero_grad)"
    r"|enumerate\(DataLoader\)#_(?:Single|Multi)ProcessDataLoaderIter\.__next__"
    r"|(?:Distributed|FullySharded)?DataParallel\.(?:_root_pre_|_pre_|_post_)?forward"
    rf"|(?:nccl|gloo|mpi|ucc):(?:{_COLLECTIVES})(?: \d+(?:->|<-)\d+)?"
    r"|Torch-Compiled Region: \d+/\d+|TorchDynamo Cache Lookup"
    r"|## Call CompiledFxGraph [a-z0-9]{40,60} ##"
)
_COPY = re.compile(r"Mem(?:cpy [HDP]to[HDP]|set) \([A-Z][a-z]+(?: -> [A-Z][a-z]+)?\)")
_NAMESPACES = (
    "at|at_cuda_detail|c10|cub|thrust|cutlass|cutlass_cudnn(?:_infer|_train)?|cutlass__5x_cudnn"
    "|cublas|cublasLt|cudnn|cute|flash|pytorch_flash|rocprim"
)
_FUNCTION = re.compile(rf"(?:{_NAMESPACES})(?:::\w+)+")
_IDENTIFIER = re.compile(r"(?<![\w:])(?:~?\w+::)*~?\w+")
_ARGUMENT = re.compile(
    rf"(?:{_NAMESPACES}|torch|std|cuda|PyTorchMemEffAttention)::.*|\d\w*"
    r"|bool|char|double|float|half|int|long|short|signed|unsigned|void|u?int\d+_t|size_t"
    r"|(?:float|half|int)\d|__half2?|__(?:nv|hip)_bfloat16"
    r"|const|decltype|false|true|lambda|nullptr|operator|volatile|typename"
    r"|(?:Trivial)?OffsetCalculator|cudnn(?:Tensor|Tensor4d|Convolution)Struct"
    r"|cudnnKernelDataType_t"
)
"""What may stand in a kernel's signature beside its name; all else could be the user's."""
_PLAIN = re.compile(r"(?:gemv(?:2N|2T|N|T|NSP|x)|gemmk1|splitKreduce)_kernel(?:_val)?")
_VENDOR = re.compile(
    r"(?:_5x_)?(?:cudnn_(?:infer_|train_)?)?(?:ampere|turing|volta|hopper|sm\d\d\d?|nvjet|cutlass"
    r"|fmha_cutlass[FB]|nccl(?:Dev)?Kernel|Cijk|miopenSp3AsmConv)_"
)
_WORD = re.compile(
    r"[A-Za-z]{0,3}|[A-Za-z]{0,3}\d[\dx]*[a-z]{0,3}|(?:[a-z]{1,3}\d+)+"
    r"|[a-z]{0,3}\d*(?:gemm|cudnn|[fdw](?:prop|grad))|[A-D][ijkl]{3}"
    r"|(?:ampere|turing|volta|hopper|nvjet|cutlass[FB]?|fmha|nccl(?:Dev)?Kernel"
    r"|miopenSp3AsmConv|AllReduce|AllGather|Broadcast|Reduce|ReduceScatter|SendRecv|AllToAll"
    r"|Generic|RING|TREE|NVLS|COLLNET|DIRECT|CHAIN|SIMPLE|Prod|MinMax|PreMulSum|SumPostDiv|float"
    r"|double|half|bfloat|u?int|align[abc]?|aligned|notaligned|seqaligned|bias|coop[AB]|cublas"
    r"|3dconv|dgrad|dropout|epilogue|execute|fprop|gelu|gmem|implicit|indexed|infer|interior"
    r"|kernel|large|medium|nchw|nchwkcrs|nhwc|nhwckrsc|precomputed|relu|segment|simt|sliced|small"
    r"|smem|split[Kk]?|stages?|strided[AB]|stride|tensor|tensorop|tile|tilesize|train|unroll"
    r"|warpgroupsize|warpsize|wgrad|winograd|wmma|analytic|optimized"
    r"|unity|xmma|xregs|gfx)(?:\d+(?:x\d+)*)?t?"
)
"""Vendors write their kernels' names from these; what has another word in it is not theirs."""
_ANONYMOUS = "(anonymous namespace)::"
_INNERMOST = re.compile(r"<[^<>]*>")
_MAX_SIGNATURE = 4096
_FUSED = re.compile(r"triton_(?:poi|red|per|tem|mm|for)(?=_)(?:_fused(?=_))?")
"""The operators that follow can be the user's."""
_CALL = re.compile(r"(?:cuda|hip|cu|nccl|roc|hsa_)[A-Z_]\w*|cudaLaunchKernel\w*")
_BUILTIN = re.compile(
    r"<(?:built-in )?(?:function|method) '?(?P<name>\w+)'?(?: of '?(?P<owner>[\w.]+)'?"
    r"(?: objects?)?(?: at 0x[0-9a-f]+)?)?>"
)
_OWNER = re.compile(
    r"str|bytes|bytearray|dict|list|tuple|set|frozenset|int|float|bool|generator|memoryview|Tensor"
    r"|Parameter|torch(?:\.[\w.]+)?|_thread\.\w+|_io\.\w+|weakref(?:\.\w+)?"
)
"""Classes that nobody can add to."""
_FUNCTIONS = """
delattr getattr hasattr setattr len isinstance issubclass iter next id max min sum sorted callable
perf_counter perf_counter_ns time time_ns sleep print repr hash abs all any range zip round
get_ident allocate_lock linear conv1d conv2d conv3d gelu scaled_dot_product_attention __new__
_foreach_add_ _foreach_copy_ _foreach_mul_ _native_multi_head_attention add arange argmax batch_norm
bmm broadcast_tensors cat clamp cumsum dropout einsum embedding empty empty_like flatten from_numpy
fromtimestamp full full_like gather group_norm index_select is_floating_point layer_norm log
log_softmax matmul max_pool2d mean mul now numel ones ones_like pow rand randn relu relu_ rsqrt
sigmoid softmax split split_with_sizes stack tanh tensor topk transpose where zeros zeros_like
"""
_KNOWN_BUILTINS = frozenset(_FUNCTIONS.split())
"""Functions, and what ``torch`` calls methods of a type; an extension's look the same."""
_INSTALLED = re.compile(r"^.*(?:site|dist)-packages/")
_PUBLIC_FILE = re.compile(
    r"(?:torch|torchvision|torchaudio|torchrec|transformers|diffusers|timm|accelerate|lightning"
    r"|pytorch_lightning|numpy|PIL|scipy|pandas|sklearn|cv2|tqdm|triton|functorch|vllm|sglang"
    r"|xformers|flash_attn|apex|deepspeed|importlib|asyncio|multiprocessing|concurrent|logging|json"
    r"|collections|ctypes|encodings|unittest)/[\w./-]+"
)
"""As the profiler writes it, without the folder of installed packages."""
_STANDARD_FILE = re.compile(
    r"(?:_collections_abc|_weakrefset|[a-z]\w*)\.py|<frozen (?:importlib\.\w+|_collections_abc"
    r"|_sitebuiltins|abc|codecs|genericpath|io|ntpath|os|posixpath|runpy|site|stat|zipimport)>"
)
"""As the profiler writes it; the folder of installed packages holds others."""
_GENERATED_FILE = re.compile(r"<string>|<eval_with_key>(?:\.\d+)?")
"""Code made while the program ran, also the user's: its functions are not named."""
_PLACEHOLDER = {
    Kind.OP: "op",
    Kind.ANNOTATION: "annotation",
    Kind.GPU_ANNOTATION: "annotation",
    Kind.RUNTIME: "call",
    Kind.KERNEL: "kernel",
    Kind.MEMCPY: "copy",
    Kind.MEMSET: "set",
    Kind.PYTHON: "function",
}


class RedactedNames:
    """Says what the rows of one recording are called in evidence.

    Without ``redact`` all names are as recorded, shortened and safe to print.
    """

    def __init__(self, trace: Trace, *, redact: bool = True) -> None:
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
        place = self.trace.lanes[lane]
        if place.kind == "stream":
            return f"device {place.device} stream {place.stream}"
        if not self.redact:
            return elide(visible(self.trace.lane_label(lane)), WIDTH)
        return f"thread {self._threads[lane]}"

    @cached_property
    def _threads(self) -> dict[int, int]:
        hosts = [at for at, lane in enumerate(self.trace.lanes) if lane.kind != "stream"]
        return {lane: number for number, lane in enumerate(hosts, 1)}

    def _of(self, kind: int, code: int) -> str:
        name = self.trace.names[code]
        what = Kind(kind)
        if what == Kind.PYTHON:
            return self._python(name, code).removeprefix("<").removesuffix(">")
        if self.redact:
            return self._public(what, name, code) or f"{_PLACEHOLDER.get(what, 'event')}#{code}"
        return short_name(name) if what == Kind.KERNEL else frame_label(name)

    @staticmethod
    def _public(kind: Kind, name: str, code: int) -> str:
        """Return what may be shown of a name that is no Python frame's; empty for nothing."""
        if kind == Kind.KERNEL:
            return _kernel(name, code)
        if kind in (Kind.MEMCPY, Kind.MEMSET):
            known = _COPY.fullmatch(name)
        elif kind == Kind.RUNTIME:
            known = _CALL.fullmatch(name)
        elif kind in (Kind.ANNOTATION, Kind.GPU_ANNOTATION):
            # whoever writes record_function can write an operator's name
            known = _ANNOTATION.fullmatch(name)
        else:
            known = _OP.fullmatch(name) or _ANNOTATION.fullmatch(name)
        return frame_label(name) if known else ""

    def _python(self, name: str, code: int) -> str:
        if not self.redact:
            return frame_label(name)
        if name.startswith(_MODULE):
            module, _, number = name[len(_MODULE) :].rpartition("_")
            return name if module in _MODULES and number.isdecimal() else f"module#{code}"
        frame = parse_frame(name)
        if frame is None:
            builtin = _BUILTIN.fullmatch(name)
            known = builtin is not None and (
                builtin["name"] in _KNOWN_BUILTINS
                if builtin["owner"] in (None, "type", "module")
                else _OWNER.fullmatch(builtin["owner"])
            )
            return frame_label(name) if known else f"builtin#{code}"
        if _GENERATED_FILE.fullmatch(frame.file):
            return f"function#{code} in {frame.file} line {frame.line}"
        file = _INSTALLED.sub("", frame.file)
        public = _PUBLIC_FILE.fullmatch(file) or _STANDARD_FILE.fullmatch(frame.file)
        if public and not is_user_frame(name):
            return f"{file}({frame.line}): {frame.function}"
        return f"function#{code} in file#{self._files[frame.file]} line {frame.line}"

    @cached_property
    def _files(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for code, name in enumerate(self.trace.names):
            frame = parse_frame(name)
            if frame is not None:
                found.setdefault(frame.file, code)
        return found


def _kernel(name: str, code: int) -> str:
    """Return what may be shown of a kernel's name; empty for nothing.

    A template's arguments are shown where each of them is known, the user's functors are not.
    """
    if fused := _FUSED.match(name):
        return f"{fused[0]}#{code}"
    if name.startswith(("_ZN2at", "_ZN3c10")):
        # the arguments of a mangled name come after "<"
        return short_name(name).partition("<")[0]
    function = short_name(name) if name.startswith("Cijk_") else _function(name)
    if not (_PLAIN.fullmatch(function) or _FUNCTION.fullmatch(function) or _of_vendor(function)):
        return ""
    text = name.replace(_ANONYMOUS, "").replace(_ANONYMOUS[:-2], "")
    known = len(name) <= _MAX_SIGNATURE and all(
        match == function or _ARGUMENT.fullmatch(match) or _of_vendor(match.partition("::")[0])
        for match in _IDENTIFIER.findall(text)
    )
    return short_name(name) if known else short_name(function.rpartition("::")[2])


def _of_vendor(name: str) -> bool:
    words = name.split("_")
    return _VENDOR.match(name) is not None and all(map(_WORD.fullmatch, words))


def _function(name: str) -> str:
    text = name[:_MAX_SIGNATURE].replace(_ANONYMOUS, "")
    shorter = _INNERMOST.sub("", text)
    while shorter != text:
        text, shorter = shorter, _INNERMOST.sub("", shorter)
    return re.split(r"[<(]", text, maxsplit=1)[0].rpartition(" ")[2]

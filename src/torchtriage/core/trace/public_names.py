"""Which names of a recording are public: those of PyTorch, its libraries and vendors."""

from __future__ import annotations

import re

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
MODULES = frozenset(_TORCH_NN.split())
"""Public wherever they come from."""

_OPTIMIZERS = (
    "ASGD|Adadelta|Adafactor|Adagrad|AdamW?|Adamax|LBFGS|Muon|NAdam|Optimizer|RAdam|RMSprop|Rprop|SGD|SparseAdam"
)
SPACES = (
    "aten|prim|prims|c10d|c10d_functional|_c10d_functional|torchvision|torchaudio|quantized|mkldnn"
    "|inductor|xla|rngprims|profiler|onednn|cudnn|fbgemm"
)
OPERATOR = re.compile(
    rf"(?:autograd::engine::evaluate_function: )?(?:(?:{SPACES})::\w+(?:\.\w+)?"
    r"|[A-Z]\w*Backward\d+|torch::autograd::(?:AccumulateGrad|CopyBackwards|CopySlices|GraphRoot)"
    r"|torch::distributed::reducer::mul_out|torch\.distributed\.ddp\.reducer::copy_bucket_to_grad"
    r"|record_param_comms|Torch-Compiled Region|AOTDispatcher Runtime Wrapper Prologue"
    r"|detach_?|TorchDynamo Cache Lookup|Pregraph bytecode|CompiledFunction(?:Backward)?)"
)
_COLLECTIVES = (
    "_?all_?gather(?:_base|_into_tensor_coalesced)?|all_?reduce(?:_coalesced|_barrier)?"
    "|_?reduce_scatter(?:_base|_tensor_coalesced)?|all_?to_?all(?:v|_base)?|broadcast|_?reduce"
    "|gather|scatter|send|recv|(?:monitored_)?barrier|coalesced"
)
ANNOTATION = re.compile(
    r"ProfilerStep#\d+|PyTorch Profiler \(\d+\)"
    rf"|Optimizer\.(?:step|zero_grad)#(?:{_OPTIMIZERS})\.(?:step|zero_grad)"
    r"|enumerate\(DataLoader\)#_(?:SingleProcess|MultiProcessing)DataLoaderIter\.__next__"
    r"|(?:Distributed|FullySharded)?DataParallel\.(?:_root_pre_|_pre_|_post_)?forward"
    rf"|(?:nccl|gloo|mpi|ucc):(?:{_COLLECTIVES})(?: \d+(?:->|<-)\d+)?"
    r"|Torch-Compiled Region: \d+/\d+|TorchDynamo Cache Lookup"
    r"|## Call CompiledFxGraph [a-z0-9]{40,60} ##"
)
COPY = re.compile(r"Mem(?:cpy [HDP]to[HDP]|set) \([A-Z][a-z]+(?: -> [A-Z][a-z]+)?\)")
NAMESPACES = (
    "at|at_cuda_detail|c10|cub|thrust|cutlass|cutlass_cudnn(?:_infer|_train)?|cutlass__5x_cudnn"
    "|cublas|cublasLt|cudnn|cute|flash|pytorch_flash|rocprim"
)
ARGUMENT = re.compile(
    rf"(?:{NAMESPACES}|torch|std|cuda|PyTorchMemEffAttention)::.*|\d\w*"
    r"|bool|char|double|float|half|int|long|short|signed|unsigned|void|u?int\d+_t|size_t"
    r"|(?:float|half|int)\d|__half2?|__(?:nv|hip)_bfloat16"
    r"|const|decltype|false|true|lambda|nullptr|operator|volatile|typename"
    r"|(?:Trivial)?OffsetCalculator|cudnn(?:Tensor|Tensor4d|Convolution)Struct"
    r"|cudnnKernelDataType_t"
)
"""What may stand in a kernel's signature beside its name; all else could be the user's."""
PLAIN_KERNEL = re.compile(r"(?:gemv(?:2N|2T|N|T|NSP|x)|gemmk1|splitKreduce)_kernel(?:_val)?")
VENDOR = re.compile(
    r"(?:_5x_)?(?:cudnn_(?:infer_|train_)?)?(?:ampere|turing|volta|hopper|sm\d\d\d?|nvjet|cutlass"
    r"|fmha_cutlass[FB]|nccl(?:Dev)?Kernel|Cijk|miopenSp3AsmConv)_"
)
VENDOR_WORD = re.compile(
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
ANONYMOUS = "(anonymous namespace)"
FUSED = re.compile(r"triton_(?:poi|red|per|tem|mm|for)(?=_)(?:_fused(?=_))?")
"""The operators that follow can be the user's."""
CALL = re.compile(r"INVALID|(?:cuda|hip|cu|nccl|roc|hsa_)[A-Z_]\w*|cudaLaunchKernel\w*")
BUILTIN = re.compile(
    r"<(?:built-in )?(?:function|method) '?(?P<name>\w+)'?(?: of '?(?P<owner>[\w.]+)'?"
    r"(?: objects?)?(?: at 0x[0-9a-f]+)?)?>"
)
OWNER = re.compile(
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
KNOWN_BUILTINS = frozenset(_FUNCTIONS.split())
"""Functions, and what ``torch`` calls methods of a type; an extension's look the same."""
GENERATED_FILE = re.compile(r"<string>|<eval_with_key>(?:\.\d+)?")
"""Code made while the program ran, also the user's: its functions are not named."""


def of_vendor(name: str) -> bool:
    """Return whether a kernel's name is a vendor's: each of its words is one that vendors use."""
    words = name.split("_")
    return VENDOR.match(name) is not None and all(map(VENDOR_WORD.fullmatch, words))

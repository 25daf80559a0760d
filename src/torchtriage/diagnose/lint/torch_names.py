"""What PyTorch's names stand for, and what people call their own things."""

from __future__ import annotations

import re


def words(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


FACTORIES = frozenset(
    f"torch.{name}"
    for name in words("""
    arange empty eye full linspace logspace ones rand randint randn randperm tensor zeros as_tensor from_numpy
    normal tril_indices triu_indices hann_window
""")
)
"""Functions that build a tensor on the host unless ``device=`` says otherwise."""

# functions of torch itself that give no tensor
HOST_CALLS = re.compile(
    r"torch\.(is_|get_|set_|use_|are_|can_|finfo|iinfo|Size|device|dtype|manual_seed|initial_seed|seed"
    r"|save|promote_types|result_type|numel|version|typename|Generator|load|hub|cuda|mps|xpu|npu|hpu|mlu"
    r"|distributed|backends|jit|fx|onnx|export|utils|multiprocessing|profiler|autograd|compile"
    r"|_|library|ops|overrides|accelerator|nn\.init|nn\.utils|nn\.attention|optim|amp|no_grad"
    r"|inference_mode|enable_grad|autocast|broadcast_shapes|Tensor$|Stream|Event|testing|package|cond$)"
)
TENSOR_SPACES = re.compile(r"torch\.(nn\.functional\.|linalg\.|fft\.|special\.)?[a-z]\w*$")

HOST_ATTRIBUTES = words("""
    shape device dtype ndim is_cuda layout requires_grad is_sparse is_leaf names nbytes itemsize is_nested
    is_meta is_cpu is_quantized grad_fn config keys
""")
HOST_METHODS = words("""
    size dim numel nelement stride storage_offset element_size data_ptr is_contiguous is_floating_point
    is_complex is_pinned type get_device ndimension has_names register_hook retain_grad untyped_storage storage
    is_signed is_shared backward keys
""")
REDUCTIONS = words("""
    sum mean max min prod norm any all std var argmax argmin amax amin median logsumexp count_nonzero nansum
    nanmean
""")
LOSSES = re.compile(r"(_loss|cross_entropy|cross_entropy_with_logits|_nll|kl_div)$")

WRAPPERS = words("enumerate tqdm trange iter islice track prange progress_bar auto_tqdm wrap_loader")
"""Calls that hand the elements of their first argument on."""

LOADERS = frozenset({"torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader"})
DATASETS = frozenset({"torch.utils.data.TensorDataset", "torch.utils.data.dataset.TensorDataset"})
NO_GRAD = words("""
    torch.no_grad torch.inference_mode torch.autograd.no_grad torch.autograd.grad_mode.no_grad
    torch.autograd.inference_mode
""")
PROFILERS = frozenset({"torch.profiler.profile", "torch.profiler.profiler.profile", "torch.autograd.profiler.profile"})
WAITS = re.compile(r"synchronize$|(^|_)sync$|(^|[._])wait(_for\w*|_until\w*|_all)?$|block_until_ready$|do_bench")
CLOCKS = frozenset(
    f"time.{name}{suffix}" for name in ("time", "perf_counter", "monotonic", "process_time") for suffix in ("", "_ns")
) | {"timeit.default_timer"}

MODULE_BASES = re.compile(r"(^torch\.nn\.)|((^|\.)(\w*Module|ModelMixin|\w*PreTrainedModel)$)")
LIGHTNING = re.compile(r"(^|\.)\w*LightningModule$")
PRETRAINED = re.compile(r"For[A-Z]\w|Autoencoder|Transformer|(Model|Net|VAE|Encoder|Unet|Classifier|Policy|Backbone)$")

MODULE = re.compile(
    r"^_?(\w+_)?(model|net|network|unet|transformer|encoder|decoder|backbone|policy|critic|actor"
    r"|discriminator|vae|teacher|student|classifier|detector|denoiser|generator|netG|netD)$"
)
BUILDER = re.compile(
    r"^_?(build|compile|create|get|init|load|make|prepare|setup|unwrap|wrap)_\w*(model|net|network"
    r"|unet|transformer|policy|module|backbone|classifier)$"
)
"""Functions that give a module."""

ROUNDS = re.compile(
    r"epoch|(^|_)(fold|trial|seed|model|net|arch|variant|cfg|config|checkpoint|ckpt|weight|backend|dtype|method|experiment"
    r"|benchmark|scenario|opt|option|run|rep|repeat|repetition|setting|cpu|gpu|stage|phase|split)s?$",
    re.IGNORECASE,
)
"""What loops go over that take no steps: epochs, models, settings."""

VERB = re.compile(r"^_?(update|train|eval|evaluate|test|run|log|save|print|plot|show|check|export|convert|optimize)_")
"""Functions that do something with what they are called after."""

LOADER = re.compile(r"^_?(\w*_)?(data_?)?loader$|^_?\w*(dataloader|DataLoader)$|^(train|val|test)_dl$")
OPTIMIZER = re.compile(r"^_?(\w*_)?(optim|optimizer|opt)(izer)?(_?\w{1,3}|_\w+)?$")
CRITERION = re.compile(
    r"^_?(criterion\w*|crit|loss_?(fn|func|function|criterion)\w*|\w+_(criterion|loss_fn|loss))$|^loss$"
)

INFERENCE = re.compile(
    r"^_?(eval|evaluate|evaluation|validate|validation|predict|infer|inference|test|sample|detect|generate|translate|caption"
    r"|transcribe)"
    r"(_\w+)?$|^\w+_(inference|evaluate|validate|predict)$"
)

RECORDS = re.compile(r"Tensor|Variable|^Batch(?!Norm)|Data$|Batch$|Encoding|Feature|List$|Boxes|Graph")
"""Classes whose objects move to a device and are no modules."""

ROUTE = re.compile(
    r"^(app|api|router|bp|blueprint|server|serve|\w+_(app|api|router|bp))"
    r"\.(route|get|post|put|api_route|websocket|batch)$"
)
"""Decorators of functions that answer one request."""

HANDLER = re.compile(r"^do_(GET|POST|PUT)$|^on_message$|^(handle|process)_(request|message|frame)$")
"""Methods that answer one request."""

HOOK = re.compile(
    r"(on_)?((train|training|val|validation|test|predict|eval|evaluate)_)?(batch|step|iteration|substep)_(begin|start|end)$"
    r"|(on_)?(before|after)_(batch|step|backward|iter|train_iter)$"
)
"""Methods that a trainer calls of its callbacks in each step, often by a name that is put together."""

RESHAPES = words("""
    view reshape flatten squeeze unsqueeze expand expand_as view_as contiguous clone transpose permute repeat
    logical_and logical_or logical_not any all
""")
"""Methods that leave a mask a mask."""

# conditions under which code does not run in every step
RARE = re.compile(
    r"debug|verbose|profil|(^|_)log(s|ging|_|$)|(^|_)print|(^|_)save|should|warn|dry_run|sanity"
    r"|interval|every|(^|_)freq|last_|first_|is_first"
    r"|is_last|(^|_)plot|visuali[sz]|determinis|anomaly|reproduc|is_compiling|is_dynamo|is_tracing"
    r"|is_scripting|is_torchdynamo|nan_inf|detect_nan|check_",
    re.IGNORECASE,
)
SIDE = re.compile(r"debug|anomaly|determinis|reproduc|seed|profil", re.IGNORECASE)
"""Functions whose very subject is a setting that others should not use by default."""

__all__ = [*sorted(name for name in globals() if name.isupper()), "words"]

"""A setting keeps every run from its fast kernels, memory or links.

Looks like: ``torch.backends.cudnn.enabled = False``; ``enable_flash_sdp(False)``, ``sdpa_kernel(SDPBackend.MATH)``;
    ``NCCL_P2P_DISABLE=1``, ``PYTORCH_NO_CUDA_MEMORY_CACHING=1``,
    ``TORCH_COMPILE_DISABLE=1`` set by the program; ``cudnn.deterministic = True``;
    ``attn_implementation="eager"``, ``enable_attention_slicing()``, a diffusion pipeline in float32.
Slow because: the library takes a slower path for each call: several times as long without cuDNN or without cached
    memory; through the host where a direct link exists.
Fix: remove it, or set it from outside if one machine needs it.
Quiet when: it is behind a flag, or in a function that says what it is for (seeds, reproducibility, debugging).
Source: PyTorch documentation of ``torch.backends`` and "CUDA environment variables"; NCCL documentation.
"""

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, Severity, keyword, literal, text_of, unpacks
from torchtriage.diagnose.lint.syntax import path_of

RULE = Rule("CFG102", "slow-backend", "config", "A setting takes the slow path in every run", "medium")

FIX = Fix(
    text="Leave the fast path on; where you need the slow one, set it from outside.",
    code="# NCCL_P2P_DISABLE=1 torchrun train.py     for the one machine that needs it",
    link="https://docs.pytorch.org/docs/stable/backends.html",
)


class _Setting(NamedTuple):
    value: object
    says: str
    severity: Severity


_FLAGS = {
    "torch.backends.cudnn.enabled": _Setting(False, "convolutions and recurrent layers run without cuDNN", "high"),
    "torch.backends.mkldnn.enabled": _Setting(False, "the CPU runs without oneDNN", "medium"),
    "torch.backends.cudnn.deterministic": _Setting(True, "cuDNN may take deterministic kernels only", "note"),
    "torch._dynamo.config.disable": _Setting(True, "torch.compile is switched off", "medium"),
}
_CALLS = {
    "torch.backends.cuda.enable_flash_sdp": (False, "attention runs without its fast kernel"),
    "torch.backends.cuda.enable_mem_efficient_sdp": (False, "attention runs without its memory-efficient kernel"),
}
_VARIABLES = {
    "PYTORCH_NO_CUDA_MEMORY_CACHING": ("1", "every tensor is allocated by the driver"),
    "TORCHDYNAMO_DISABLE": ("1", "torch.compile is switched off"),
    "TORCH_COMPILE_DISABLE": ("1", "torch.compile is switched off"),
    "NVIDIA_TF32_OVERRIDE": ("0", "no library may use TF32"),
    "NCCL_P2P_DISABLE": ("1", "devices communicate through the host"),
    "NCCL_SHM_DISABLE": ("1", "processes on one machine communicate over the network"),
    "NCCL_IB_DISABLE": ("1", "machines communicate without InfiniBand"),
}


def find(module: Module) -> Iterator[Hit]:
    """Yield settings of slow paths that every run takes."""
    for assign in module.assigns:
        root, dot, rest = assign.target.partition(".")
        setting = _FLAGS.get(module.aliases.get(root, root) + dot + rest) if dot else None
        if setting is None or assign.context.seldom or literal(assign.expression) is not setting.value:
            continue
        yield Hit(assign.node, f"{setting.says}: {text_of(assign.node)}", severity=setting.severity)
    for call in module.called(*_CALLS):
        value, says = _CALLS[call.name]
        if not call.context.seldom and call.node.args and literal(call.node.args[0]) is value:
            yield Hit(call.node, f"{says}: {text_of(call.node)}", call.attr)
    for call in module.called("torch.nn.attention.sdpa_kernel"):
        chosen = {path_of(item).rpartition(".")[2] for item in _items(call.node)}
        if chosen == {"MATH"} and not call.context.seldom and "torch.export" not in module.text:
            yield Hit(call.node, "attention may take its unfused path only", call.attr, severity="low")
    yield from _of_libraries(module)
    said = list(module.environ)
    said += [
        (call.node, str(literal(call.node.args[0])), call.node.args[1], call.context)
        for call in module.called("os.environ.setdefault", "os.putenv")
        if len(call.node.args) > 1
    ]
    for node, name, given, context in said:
        value_says = _VARIABLES.get(name)
        if value_says is not None and literal(given) == value_says[0] and not context.seldom:
            yield Hit(node, f"{value_says[1]}: {name}={value_says[0]} for every run")


def _of_libraries(module: Module) -> Iterator[Hit]:
    """Yield what transformers and diffusers are asked for that is slower."""
    for call in module.calls:
        if call.context.seldom:
            continue
        if call.attr == "enable_attention_slicing" and not call.node.args and call.receiver.kind != "module":
            message = "attention runs in slices, where its fused kernel needs no more memory"
            yield Hit(call.node, message, call.attr, severity="low")
        if not call.attr.startswith("from_"):
            continue
        given = keyword(call.node, "attn_implementation")
        if given is not None and literal(given) == "eager" and not _NEEDS_SCORES.search(module.text):
            yield Hit(given, "attention is written out instead of fused", call.attr, severity="low")
        if _PIPELINE.search(call.name) and module.names_cuda and not _HALF.search(module.text):
            half = keyword(call.node, "torch_dtype") or keyword(call.node, "dtype")
            if (half is None and not unpacks(call.node)) or text_of(half or call.node).endswith("float32"):
                message = "the pipeline computes in float32, at twice the memory and a fraction of the speed"
                yield Hit(call.node, message, call.attr, severity="low")


_NEEDS_SCORES = re.compile(r"output_attentions|attentions\b|gemma|attn_weights|torch\.onnx|export")
_PIPELINE = re.compile(r"^diffusers\.\w*Pipeline\w*\.from_(pretrained|single_file)$")
_HALF = re.compile(r"\.half\(|autocast|bfloat16|float16|fp16|bf16")


def _items(node: ast.Call) -> list[ast.expr]:
    given = node.args[0] if node.args else None
    if isinstance(given, ast.List | ast.Tuple):
        return given.elts
    return [given] if given is not None else []

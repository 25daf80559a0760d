"""A setting keeps every run from its fast kernels, memory or links.

Looks like: ``torch.backends.cudnn.enabled = False``; ``enable_flash_sdp(False)``, ``sdpa_kernel(SDPBackend.MATH)``;
    ``NCCL_P2P_DISABLE=1``, ``PYTORCH_NO_CUDA_MEMORY_CACHING=1``,
    ``TORCH_COMPILE_DISABLE=1`` set by the program; ``cudnn.deterministic = True``.
Slow because: the library takes a slower path for each call: several times as long without cuDNN or without cached
    memory; through the host where a direct link exists.
Fix: take it out, or set it from outside where one machine needs it.
Quiet when: it is behind a flag, or in a function that says what it is for (seeds, reproducibility, debugging).
Source: PyTorch documentation of ``torch.backends`` and "CUDA environment variables"; NCCL documentation.
"""

import ast
from collections.abc import Iterator
from typing import NamedTuple

from torchtriage.diagnose.lint.base import Context, Fix, Hit, Module, Rule, Severity, literal, text_of
from torchtriage.diagnose.lint.syntax import path_of

RULE = Rule("CFG102", "slow-backend", "config", "A setting takes the slow path in every run", "medium")

FIX = Fix(
    text="Leave the fast path on, and set it otherwise from outside where it is needed.",
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
    "NCCL_P2P_DISABLE": ("1", "devices exchange through the host"),
    "NCCL_SHM_DISABLE": ("1", "processes of one machine exchange through the network"),
    "NCCL_IB_DISABLE": ("1", "machines exchange without InfiniBand"),
}


def find(module: Module) -> Iterator[Hit]:
    """Yield settings of slow paths that every run takes."""
    for assign in module.assigns:
        root, dot, rest = assign.target.partition(".")
        setting = _FLAGS.get(module.aliases.get(root, root) + dot + rest) if dot else None
        if setting is None or _quiet(assign.context) or literal(assign.expression) is not setting.value:
            continue
        yield Hit(assign.node, f"{setting.says}: {text_of(assign.node)}", severity=setting.severity)
    for call in module.called(*_CALLS):
        value, says = _CALLS[call.name]
        if not _quiet(call.context) and call.node.args and literal(call.node.args[0]) is value:
            yield Hit(call.node, f"{says}: {text_of(call.node)}", call.attr)
    for call in module.called("torch.nn.attention.sdpa_kernel"):
        chosen = {path_of(item).rpartition(".")[2] for item in _items(call.node)}
        if chosen == {"MATH"} and not _quiet(call.context) and "torch.export" not in module.text:
            yield Hit(call.node, "attention may take its unfused path only", call.attr, severity="low")
    said = [(node, name, value, context) for node, name, value, context in module.environ]
    said += [
        (call.node, str(literal(call.node.args[0])), call.node.args[1], call.context)
        for call in module.called("os.environ.setdefault", "os.putenv")
        if len(call.node.args) > 1
    ]
    for node, name, given, context in said:
        value_says = _VARIABLES.get(name)
        if value_says is not None and literal(given) == value_says[0] and not _quiet(context):
            yield Hit(node, f"{value_says[1]}: {name}={value_says[0]} for every run")


def _items(node: ast.Call) -> list[ast.expr]:
    given = node.args[0] if node.args else None
    if isinstance(given, ast.List | ast.Tuple):
        return given.elts
    return [given] if given is not None else []


def _quiet(context: Context) -> bool:
    return context.aside or context.rare

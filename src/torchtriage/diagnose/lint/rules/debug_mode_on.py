"""A debugging aid is left on.

Looks like: ``detect_anomaly``, ``set_detect_anomaly(True)``; ``CUDA_LAUNCH_BLOCKING=1``,
    ``AMD_SERIALIZE_KERNEL``, ``TORCH_LOGS`` and the like set in the program.
Slow because: every operator is checked or waited for: a step takes 1.3 to 3 times as long.
Fix: switch it on from outside when needed, or behind a flag.
Quiet when: it is behind a debug flag, is switched off, or its function says that it debugs.
Source: PyTorch performance tuning guide, "Disable debugging APIs".
"""

from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, SourceCall, keyword, literal
from torchtriage.diagnose.lint.torch_names import words

RULE = Rule("CFG044", "debug-mode-on", "config", "A debug mode is switched on", "high")

FIX = Fix(
    text="Remove it, or put it behind a flag.",
    code="torch.autograd.set_detect_anomaly(args.detect_anomaly)",
    link="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#disable-debugging-apis",
)

_VARIABLES = words("""
    AMD_SERIALIZE_COPY AMD_SERIALIZE_KERNEL CUDA_LAUNCH_BLOCKING HIP_LAUNCH_BLOCKING TORCHDYNAMO_VERBOSE
    TORCH_COMPILE_DEBUG TORCH_DISTRIBUTED_DEBUG TORCH_LOGS
""")
_OFF = ("0", "", "OFF", "off", "INFO")
_ANOMALY = tuple(
    f"torch.autograd{space}.{name}"
    for space in ("", ".anomaly_mode")
    for name in ("detect_anomaly", "set_detect_anomaly")
)


def find(module: Module) -> Iterator[Hit]:
    """Yield debugging modes that are switched on for everybody."""
    for call in module.called(*_ANOMALY):
        if call.context.seldom or not _is_on(module, call):
            continue
        yield Hit(call.node, f"{call.attr} checks every operator of the backward pass", call.attr)
    for node, name, value, context in module.environ:
        setting = literal(value)
        if context.seldom:
            continue
        if name in _VARIABLES and _switches_on(setting):
            yield Hit(node, f"{name}={setting} is set for every run")
    for call in [*module.called("os.environ.setdefault"), *module.called("os.putenv")]:
        given = [literal(arg) for arg in call.node.args[:2]]
        if len(given) == 2 and given[0] in _VARIABLES and _switches_on(given[1]) and not call.context.seldom:
            yield Hit(call.node, f"{given[0]}={given[1]} is set for every run")


def _switches_on(setting: object) -> bool:
    return isinstance(setting, str) and setting not in _OFF and setting[:1] != "-"


def _is_on(module: Module, call: SourceCall) -> bool:
    mode = keyword(call.node, "mode") or (
        call.node.args[0] if call.node.args and call.attr == "set_detect_anomaly" else None
    )
    if mode is None:
        return call.attr == "detect_anomaly"
    return module.constant(mode, call.context) is True

"""What functions of torch give."""

from __future__ import annotations

from torchtriage.diagnose.lint import torch_names
from torchtriage.diagnose.lint.abstract_values import (
    AN_OPTIMIZER,
    CPU,
    DEVICE,
    HOST,
    MAYBE,
    NO_GRAD,
    UNKNOWN,
    Value,
    placed,
)
from torchtriage.diagnose.lint.facts import SourceCall, SourceFunction
from torchtriage.diagnose.lint.syntax import arguments, flag, keyword, literal
from torchtriage.diagnose.lint.walk.following import runs_here
from torchtriage.diagnose.lint.walk.modules import note_compile, note_work
from torchtriage.diagnose.lint.walk.walker import Walker


def torch_call(walker: Walker, call: SourceCall) -> Value:
    """Return what ``torch.name(...)`` gives."""
    name, node, given = call.name, call.node, list(call.arguments)
    last = name.rpartition(".")[2]
    if name in torch_names.FACTORIES or last.endswith("_like"):
        return _factory(call)
    if name in torch_names.LOADERS:
        return Value("loader", CPU, pinned=flag(node, "pin_memory", 7), made_by=node, calls=_loads(walker, call))
    if name in torch_names.DATASETS:
        device, _ = placed(given)
        return Value("dataset", device)
    if name in torch_names.NO_GRAD:
        return Value("callable", of=NO_GRAD)
    if name == "torch.set_grad_enabled" and literal(node.args[0] if node.args else None) is False:
        walker.context = walker.context.but(no_grad=True)  # to the end of the block
        return Value("callable", of=NO_GRAD)
    if name == "torch.compile":
        target = given[0] if given else UNKNOWN
        note_compile(walker, node)
        walker.event("compile", node)
        if target.kind == "module":
            return target.but(compiled=True)
        return Value("callable", compiled=True)
    if last == "DistributedDataParallel":
        return Value("module", DEVICE, ddp=True)
    if name in ("torch.nn.DataParallel", "torch.nn.parallel.DataParallel"):
        return Value("module", DEVICE)
    if name.startswith("torch.optim.") and last[:1].isupper():
        return AN_OPTIMIZER if "lr_scheduler" not in name else UNKNOWN
    if name.startswith("torch.jit.") and last in ("load", "script", "trace"):
        return Value("module", MAYBE, evaluated=True)
    if name == "torch.hub.load":
        return Value("module", MAYBE if walker.module.uses_device else CPU)
    if name == "torch.nn.Parameter":
        return Value("tensor", CPU if not walker.module.uses_device else MAYBE, grad=True)
    if name == "torch.nn.utils.clip_grad_norm_":
        return Value("tensor", MAYBE, scalar=True, norm=True)
    if name in torch_names.PROFILERS:
        return Value("profiler")
    if torch_names.WAITS.search(name):
        walker.event("wait", node)
        return HOST
    if name.startswith("torch.nn.") and last[:1].isupper() and "functional" not in name:
        return Value("module", CPU, of=name, items=_parts(given) if last in ("Sequential", "ModuleList") else ())
    if name == "torch.cuda.Event" or name == "torch.Event":
        return Value("callable", of="event")
    if name in ("torch.equal", "torch.allclose", "torch.is_nonzero"):
        device, _ = placed(given)
        walker.event("wait", node)
        return Value("tensor", device, scalar=True)
    if name == "torch.autograd.grad":
        note_work(walker)
        device, _ = placed(given)
        again = keyword(node, "create_graph")
        graph = again is not None and walker.module.constant(again, walker.context) is True
        return Value("list", CPU, items=(Value("tensor", device, grad=graph),))
    if name in ("torch.cat", "torch.stack", "torch.concat", "torch.vstack", "torch.hstack"):
        device, grad = placed(given[:1])
        return Value("tensor", device, grad=grad and not walker.context.no_grad)
    if torch_names.HOST_CALLS.match(name) or not torch_names.TENSOR_SPACES.match(name):
        return UNKNOWN if not name.startswith("torch.is_") else HOST
    note_work(walker)
    device, grad = placed(given)
    if last in ("split", "chunk", "unbind", "tensor_split", "meshgrid"):
        return Value("list", CPU, items=(Value("tensor", device, grad=grad),))
    scalar = (last in torch_names.REDUCTIONS and len(node.args) == 1 and not node.keywords) or bool(
        torch_names.LOSSES.search(last) and literal(keyword(node, "reduction")) != "none"
    )
    scalar = scalar or (
        bool(given) and all(item.scalar or item.kind == "host" for item in given) and any(item.scalar for item in given)
    )
    made = [item.made_by for item in given if item.kind != "host"]
    return Value(
        "tensor",
        device,
        grad=grad and not walker.context.no_grad,
        scalar=scalar,
        made_by=made[0] if len(made) == 1 else None,
    )


def _parts(given: list[Value]) -> tuple[Value, ...]:
    """Return the modules that a container is built of, as far as they are of the file's classes."""
    found = [part for item in given for part in ((item,) if item.kind == "module" else item.items)]
    return tuple(part for part in found if part.kind == "module" and part.of)


def _loads(walker: Walker, call: SourceCall) -> tuple[SourceFunction, ...]:
    """Return what a loader runs for each batch: the data set's methods, what collates."""
    found: list[SourceFunction] = []
    for node, value in zip(arguments(call.node), call.arguments, strict=True):
        owner = walker.class_of(value)
        if owner is not None:
            found += [item for name in ("__getitem__", "__iter__") for item in owner.runs(name)]
        elif value.kind == "callable" and node is keyword(call.node, "collate_fn"):
            found += value.calls
    for function in found:
        function.loads = True
        runs_here(walker, function)
    return tuple(found)


def _factory(call: SourceCall) -> Value:
    node, given = call.node, call.arguments
    last = call.name.rpartition(".")[2]
    if last.endswith("_like"):
        return Value("tensor", given[0].device if given else MAYBE)
    read = next((item.readback for item in given if item.readback is not None), None)
    device = keyword(node, "device")
    if device is None:
        if last == "as_tensor" and given and given[0].kind in ("tensor", "unknown"):
            return given[0] if given[0].kind == "tensor" else Value("tensor", MAYBE)
        made_by = None if last in ("from_numpy",) else node
        return Value("tensor", CPU, made_by=made_by, readback=read)
    where = literal(device)
    return Value("tensor", CPU if where == "cpu" else DEVICE, readback=read)

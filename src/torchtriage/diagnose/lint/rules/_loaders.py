"""What the rules about loaders share."""

import ast
import re

from torchtriage.diagnose.lint.base import Module, SourceCall, literal, text_of, unpacks
from torchtriage.diagnose.lint.facts import Class, SourceFunction
from torchtriage.diagnose.lint.syntax import argument

N_WORKERS, COLLATE_FN, PIN_MEMORY = 5, 6, 7  # their places among the positional arguments


def workers(module: Module, call: SourceCall) -> int | None:
    """Return ``num_workers`` of a loader: 0 when absent, None when it is not known here."""
    given = argument(call.node, "num_workers", N_WORKERS)
    if given is None:
        return None if unpacks(call.node) else 0
    value = module.constant(given, call.context) if module.is_program else literal(given)
    return value if isinstance(value, int) else None


def dataset(module: Module, call: SourceCall) -> Class | None:
    """Return the class of the file that a loader's dataset is of."""
    given = argument(call.node, "dataset", 0)
    if given is None:
        return None
    value = call.arguments[0] if call.node.args else module.value(given)
    return module.classes.get(value.of) or module.classes.get(_class_of(module, given))


_SLOW = re.compile(
    r"\b(open|imread|imdecode|read_\w+|load\w*|decode\w*|Image\.\w+|cv2\.\w+|transforms?|augment\w*|tokeniz\w+"
    r"|apply|librosa\.\w+|torchaudio\.\w+|h5py\.\w+|get_object|fetch\w*|resize|fit\w*|sleep)\("
)


def reads_or_transforms(module: Module, known: Class) -> bool:
    """Return whether making a sample reads, decodes or transforms, in a dataset of the file."""
    methods = [item for name, item in known.methods.items() if name != "__init__"]
    texts = [ast.unparse(item.node) for item in methods]
    called = {word for text in texts for word in re.findall(r"\b\w+(?=\()", text)}
    texts += [ast.unparse(item.node) for item in module.functions if item.owner is None and item.name in called]
    return any(_SLOW.search(text) for text in texts)


def costly_datasets(module: Module) -> set[str]:
    """Return the names of data sets of the file that read or transform."""
    return {
        call.target
        for call in module.calls
        if call.target
        and isinstance(call.node.func, ast.Name)
        and (known := module.classes.get(call.attr)) is not None
        and "__getitem__" in known.methods
        and reads_or_transforms(module, known)
    }


def in_memory(module: Module, call: SourceCall) -> bool:
    """Return whether a loader's dataset only hands out what lies in memory."""
    if not call.node.args:
        return False
    if call.arguments[0].kind in ("dataset", "tensor"):
        return True
    node = call.node.args[0]
    if isinstance(node, ast.List | ast.ListComp):
        return True
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("range", "list"):
        return True
    known = module.classes.get(_class_of(module, node))
    getter = known.methods.get("__getitem__") if known is not None else None
    return getter is not None and _hands_out(getter)


def _class_of(module: Module, node: ast.expr) -> str:
    """Return the class of the file that a dataset expression is made of."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id in ("Subset", "random_split") and node.args:
            return _class_of(module, node.args[0])
        return node.func.id
    name = text_of(node) if isinstance(node, ast.Name | ast.Attribute) else ""
    for assign in module.assigns_to(name):
        if isinstance(assign.expression, ast.Call):
            return _class_of(module, assign.expression)
    return ""


def _hands_out(getter: SourceFunction) -> bool:
    """Return whether ``__getitem__`` does nothing but index."""
    calls = [node for node in ast.walk(getter.node) if isinstance(node, ast.Call)]
    return len(getter.node.body) <= 6 and all(
        re.search(r"(^|\.)(clone|tensor|as_tensor|from_numpy|long|float|dict|len|int)$", ast.unparse(call.func))
        for call in calls
    )


def moves_batch(call: SourceCall) -> bool:
    """Return whether a call copies what came out of a loader to the device."""
    return call.receiver.data and call.value.kind == "tensor" and call.value.device == 2

"""A product of matrices computes what an elementwise product, or a look-up, would give.

Looks like: ``torch.diag(d) @ a`` and ``a @ torch.diag(d)``; ``F.one_hot(ids, n).float() @ table`` or through a linear
    layer; ``torch.diag(x @ y.T)`` and ``torch.trace(x @ y)``, where all products are made and n are read;
    ``MultivariateNormal(mean, torch.diag(var))``, which factors and solves with that matrix; remark: ``adj @ x`` with a
    graph's adjacency as a full matrix.
Slow because: nearly all of the multiplications are by zero, or their results are dropped: the cube of the size instead
    of its square, and a matrix that need not exist.
Fix: ``d[:, None] * a``, ``a * d``; ``table[ids]`` (``nn.Embedding``); ``(x * y).sum(-1)``;
    ``Independent(Normal(mean, var.sqrt()), 1)``.
Quiet when: the product is used otherwise, too.
Source: PyTorch documentation of ``torch.diag`` and ``torch.nn.Embedding``.
"""

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, text_of

RULE = Rule("KRN103", "structured-product", "kernel", "A full matrix in place of a diagonal or a look-up", "low")

FIX = Fix(
    text="Scale rows or columns, look rows up, or sum the products of pairs.",
    code="""scaled = d[:, None] * a * d      # torch.diag(d) @ a @ torch.diag(d)
rows = table[ids]                # F.one_hot(ids, n).float() @ table
same = (x * y).sum(-1)           # torch.diag(x @ y.T)""",
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.Embedding.html",
)

_INDEPENDENT = Fix(
    text="Independent values need only a Normal, wrapped in Independent to count as one draw.",
    code="""policy = Independent(Normal(mean, std), 1)  # MultivariateNormal(mean, torch.diag_embed(std**2))""",
    link="https://docs.pytorch.org/docs/stable/distributions.html#independent",
)
_MULTIPLIES = re.compile(r"(?<!jit\.)\b(diag(_embed|onal|flat)?|one_hot|trace)\(")
_PRODUCTS = frozenset(["matmul", "mm", "bmm"])
_DIAGONALS = frozenset(["torch.diag", "torch.diag_embed", "torch.diagflat"])
_READS = frozenset(["torch.diag", "torch.diagonal", "torch.trace"])
_CASTS = frozenset(["float", "to", "type", "half", "bfloat16", "double", "cuda", "type_as", "contiguous", "unsqueeze"])


def find(module: Module) -> Iterator[Hit]:
    """Yield products with diagonal and one-hot matrices, and products of which the diagonal is read."""
    text = module.text
    if ("adj" in text or "laplacian" in text) and _GRAPH.search(text) and not _SPARSE.search(text):
        yield from _dense_graphs(module)
    if not ("diag" in text or "one_hot(" in text or "trace(" in text) or not _MULTIPLIES.search(text):
        return
    speaking = [
        item.node for item in module.functions if item.outer is None and _MULTIPLIES.search(module.text_of(item))
    ]
    bare = [item for item in module.tree.body if not isinstance(item, ast.FunctionDef | ast.ClassDef)]
    for node in (part for item in (*speaking, *bare) for part in ast.walk(item)):
        if not isinstance(node, ast.BinOp | ast.Call):
            continue
        if any(_is_diagonal(module, made) for made in _covariance(module, node)):
            yield Hit(node, f"a full matrix for independent values: {text_of(node)}", "linalg_", fix=_INDEPENDENT)
        operands = _operands(module, node)
        for operand in operands:
            made = _uncast(module, operand)
            name = module.name_called(made)
            if _is_diagonal(module, made):
                yield Hit(node, f"a product with a diagonal matrix: {text_of(node)}", "mm")
                break
            if name.endswith("one_hot"):
                yield Hit(node, f"a product with one-hot rows is a look-up: {text_of(node)}", "mm")
                break
        if operands and not isinstance(module.parents.get(node), ast.BinOp) and _is_only_diagonal(module, node):
            yield Hit(node, f"all products are computed, but only the diagonal is read: {text_of(node)}", "mm")


def _dense_graphs(module: Module) -> Iterator[Hit]:
    """Yield products with an adjacency in the code of a module or a step."""
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.BinOp | ast.Call) or not (operands := _operands(module, node)):
            continue
        function = module.around(node, ast.FunctionDef)
        if function is None or function.name != "forward":
            continue
        left = operands[0]
        if not isinstance(left, ast.Name | ast.Attribute) or len(operands) < 2:
            continue
        made = [text_of(left)]
        if isinstance(left, ast.Name):
            stores = module.stores(left.id, function)
            made += [text_of(module.parents[use], 200) for use in stores if isinstance(module.parents[use], ast.Assign)]
        if any(map(_GRAPH.search, made)) and not any(map(_LEARNED.search, made)):
            yield Hit(node, f"a product with a graph stored as a full matrix: {text_of(node)}", "mm", severity="note")


_GRAPH = re.compile(r"(^|[._\s(=])(adj|adjacency|laplacian|adj_?(norm|hat|matrix|t)|a_hat|norm_adj|edge_matrix)\b")
_SPARSE = re.compile(r"sparse|edge_index|attention|adaptive|dense_to|DenseG|learn(ed|able)_adj|edge_attr")
_LEARNED = re.compile(r"softmax|sigmoid|relu|attn|score|learn|Parameter")


def _operands(module: Module, node: ast.BinOp | ast.Call) -> list[ast.expr]:
    """Return the two sides of a product of matrices, or what a linear layer is given."""
    if isinstance(node, ast.BinOp):
        return [node.left, node.right] if isinstance(node.op, ast.MatMult) else []
    func = node.func
    if isinstance(func, ast.Attribute) and func.attr in _PRODUCTS:
        return node.args[:2] if module.name_of(func).startswith("torch.") else [func.value, *node.args[:1]]
    call = module.calls_by_node.get(node) if "one_hot(" in module.text else None
    return node.args[:1] if call is not None and call.receiver.of.endswith("nn.Linear") else []


def _covariance(module: Module, node: ast.BinOp | ast.Call) -> list[ast.expr]:
    """Return the matrix that a normal distribution of several numbers is given."""
    if isinstance(node, ast.BinOp) or not module.name_of(node.func).endswith("distributions.MultivariateNormal"):
        return []
    return [_uncast(module, given) for given in (*node.args[1:], *(item.value for item in node.keywords))]


def _is_diagonal(module: Module, made: ast.expr) -> bool:
    name = module.name_called(made)
    return name in _DIAGONALS or name.endswith(".diag_embed")


def _uncast(module: Module, node: ast.expr) -> ast.expr:
    """Return what is multiplied, variables followed and changes of type taken off."""
    for _ in range(6):
        if isinstance(node, ast.Name):
            made = module.made_of(node)
            if made is node:
                break
            node = made
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CASTS:
            node = node.func.value
        else:
            break
    return node


def _is_only_diagonal(module: Module, node: ast.expr) -> bool:
    """Return whether nothing but the diagonal of a product is read."""
    uses = module.uses(node)
    return bool(uses) and all(_reads_diagonal(module, use) for use in uses)


def _reads_diagonal(module: Module, node: ast.expr) -> bool:
    around = module.parents.get(node)
    if isinstance(around, ast.Call) and node in around.args[:1]:
        return module.name_of(around.func) in _READS
    call = module.parents.get(around) if isinstance(around, ast.Attribute) else None
    return (
        isinstance(call, ast.Call)
        and isinstance(around, ast.Attribute)
        and around.attr in ("diag", "diagonal", "trace")
        and not any(item.arg == "offset" for item in call.keywords)
    )

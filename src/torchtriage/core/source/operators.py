"""What operators, attributes and C types of Python can become: methods, and operators of PyTorch."""

from __future__ import annotations

import ast


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


BINARY: dict[type[ast.operator], tuple[str, tuple[str, ...]]] = {
    ast.Add: ("add", ("add",)),
    ast.Sub: ("sub", ("sub", "rsub")),
    ast.Mult: ("mul", ("mul",)),
    ast.Div: ("truediv", ("div", "true_divide", "reciprocal")),
    ast.FloorDiv: ("floordiv", ("floor_divide", "div")),
    ast.Mod: ("mod", ("remainder", "fmod")),
    ast.Pow: ("pow", ("pow",)),
    ast.MatMult: ("matmul", ("matmul", "mm", "bmm", "mv", "dot")),
    ast.BitAnd: ("and", ("bitwise_and", "__and__", "__iand__", "logical_and")),
    ast.BitOr: ("or", ("bitwise_or", "__or__", "__ior__", "logical_or")),
    ast.BitXor: ("xor", ("bitwise_xor", "__xor__", "__ixor__", "logical_xor")),
    ast.LShift: ("lshift", ("__lshift__", "__ilshift__", "bitwise_left_shift")),
    ast.RShift: ("rshift", ("__rshift__", "__irshift__", "bitwise_right_shift")),
}
COMPARE: dict[type[ast.cmpop], tuple[str, ...]] = {
    ast.Eq: ("eq",),
    ast.NotEq: ("ne",),
    ast.Lt: ("lt", "gt"),
    ast.LtE: ("le", "ge"),
    ast.Gt: ("gt", "lt"),
    ast.GtE: ("ge", "le"),
    ast.In: ("contains",),
    ast.NotIn: ("contains",),
}
UNARY: dict[type[ast.unaryop], str] = {ast.USub: "neg", ast.UAdd: "pos", ast.Invert: "invert"}
TRUTH = ("is_nonzero",)
NUMBER = ("item", "_local_scalar_dense")
NUMBERS = frozenset({"int", "float", "bool", "complex"})
READ = _words("""
    select slice index unsqueeze alias lift_fresh to detach view masked_select nonzero item permute index_select
""")
WRITE = (*READ, "copy", "fill", "index_put", "masked_fill", "expand")
VIEWS = frozenset(_words("T mT H mH real imag data"))
VIEWED = _words("""
    numpy_T transpose permute adjoint conj real imag view_as_real select detach alias t
""")
CONSUMERS = frozenset(
    _words("""
    list tuple set frozenset dict enumerate zip map filter reversed bytes bytearray str int float bool complex
    range slice type object super property staticmethod classmethod memoryview defaultdict deque Counter partial
    Path
""")
)
"""C types and the like: calling them leaves no frame, yet may run frames of what they read."""
CONSTRUCTORS = frozenset(
    _words("""
    __init__ __new__ __call__ __post_init__ __prepare__ __init_subclass__ __set_name__
""")
)

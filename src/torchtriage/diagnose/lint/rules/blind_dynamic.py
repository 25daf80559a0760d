"""``dynamic=True`` asks for code that fits every shape.

Looks like: ``torch.compile(..., dynamic=True)``.
Slow because: kernels for unknown sizes cannot use the sizes; some optimisations are left out. By
    default PyTorch compiles for the first shape and turns dynamic only what changes.
Fix: leave it out, and mark what varies with ``torch._dynamo.mark_dynamic(x, 0)``.
Quiet when: ``dynamic`` is absent, None, False, or comes from a setting.
Source: PyTorch documentation, "Dynamic shapes".
"""

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, keyword, literal

RULE = Rule("CMP101", "blind-dynamic", "compile", "Everything is compiled for unknown shapes", "low")

FIX = Fix(
    text="Leave dynamic out, and mark the dimensions that vary.",
    code="""model = torch.compile(model)
torch._dynamo.mark_dynamic(x, 0)  # this dimension varies""",
    link="https://docs.pytorch.org/docs/stable/torch.compiler_dynamic_shapes.html",
)


def find(module: Module) -> Iterator[Hit]:
    """Yield compilations with dynamic=True."""
    for call in [*module.called("torch.compile"), *module.sent("compile")]:
        if literal(keyword(call.node, "dynamic")) is True:
            yield Hit(call.node, "dynamic=True compiles for unknown sizes in every dimension")
    for function in module.functions:
        for decorator in function.node.decorator_list:
            if (
                isinstance(decorator, ast.Call)
                and module.name_of(decorator.func) == "torch.compile"
                and literal(keyword(decorator, "dynamic")) is True
            ):
                yield Hit(decorator, "dynamic=True compiles for unknown sizes in every dimension")

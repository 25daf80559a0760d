"""A whole table is searched for the rows of one sample.

Looks like: ``self.df[self.df["image_id"] == name]``, ``df.loc[df.file == name, "label"]``, ``df.query(...)``,
    ``np.where(self.ids == i)`` in ``__getitem__``, or in a loop over all samples.
Slow because: every row is compared for each sample: the time of an epoch grows with the square of the samples.
Fix: group or index once: ``dict(tuple(df.groupby("image_id")))``, ``df.set_index("file")``.
Quiet when: the table belongs to the sample.
Source: pandas documentation, "Group by: split-apply-combine".
"""

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, text_of
from torchtriage.diagnose.lint.samples import samples_of
from torchtriage.diagnose.lint.syntax import indices, path_of

RULE = Rule("DAT110", "table-searched-for-sample", "data", "A DataFrame is searched for every sample", "medium")

FIX = Fix(
    text="Group the rows once, and look them up.",
    code="""rows = dict(tuple(df.groupby("image_id")))    # in __init__
boxes = rows[name]                            # in __getitem__""",
    link="https://pandas.pydata.org/docs/user_guide/groupby.html",
)

_TABLE = re.compile(
    r"(^|[._])(df|data_?frame|frame|table|annotations?|anns?|meta\w*|labels_df|csv|data|ids|image_ids)$", re.I
)


def find(module: Module) -> Iterator[Hit]:
    """Yield comparisons of a whole column with what follows from the sample."""
    samples = samples_of(module)
    for function in samples.functions:
        for node in ast.walk(function.node):
            test = _selected(module, node)
            if test is None or len(test.ops) != 1 or not isinstance(test.ops[0], ast.Eq):
                continue
            column, key = test.left, test.comparators[0]
            if not samples.is_fixed(column, function):
                column, key = key, column
            if samples.is_fixed(column, function) and _of_table(column) and samples.follows(key, function):
                shown = node if isinstance(node, ast.expr) else test
                yield Hit(shown, f"all rows are searched for each sample: {text_of(shown)}")


def _selected(module: Module, node: ast.AST) -> ast.Compare | None:
    """Return the comparison by which rows are chosen: of a subscript, of ``where`` or ``nonzero``."""
    if isinstance(node, ast.Subscript):
        return next((item for item in indices(node) if isinstance(item, ast.Compare)), None)
    if isinstance(node, ast.Call):
        if module.name_of(node.func) in ("numpy.where", "numpy.nonzero", "numpy.argwhere", "numpy.flatnonzero"):
            return node.args[0] if len(node.args) == 1 and isinstance(node.args[0], ast.Compare) else None
        if isinstance(node.func, ast.Attribute) and node.func.attr == "nonzero":
            return node.func.value if isinstance(node.func.value, ast.Compare) else None
    return None


def _of_table(node: ast.expr) -> bool:
    """Return whether an expression is a column of a table, or an array that the data set has."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return bool(path_of(node.value))
    path = path_of(node)
    return path.startswith("self.") or (path.count(".") > 0 and _TABLE.search(path.rpartition(".")[0]) is not None)

"""What the source says of a line that was sampled: the loops around it, and what is called at one place in it."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from torchtriage.core.source.files import Sources
from torchtriage.diagnose.lint.syntax import holds, names_in, set_by, stored_names, walk
from torchtriage.diagnose.lint.work_syntax import parameters, shared_names
from torchtriage.diagnose.runs.samples import Position
from torchtriage.diagnose.runs.tensor_names import Flow, Scope, is_tensor

Loop = ast.For | ast.AsyncFor | ast.While | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
CHANGES = frozenset(
    ["reset", "step", "update", "append", "extend", "push", "pop", "put", "write", "send", "fit", "seek", "all_reduce"]
)
"""Methods that change an object, or others' work."""
_READS = re.compile(r"load|open|read|from(txt|file)|memmap|File$")
_WRITES = re.compile(
    r"write|save|dump|tofile|flush|(?<!_a)sync$|commit|executemany|truncate|create|touch|copy|move|rename|replace|remove|unlink"
    r"|rmtree|mkdir|makedirs|rmdir"
)
_OPENS = re.compile(r"open|File|memmap")
_CHANGES_TABLE = re.compile(r"\s*(insert|update|delete|replace|create|drop|alter)\s", re.IGNORECASE)
_SLEEP = re.compile(r"[^#'\"]*\bsleep\(")


class SourceView:
    """Answers questions about lines of the user's files; what cannot be read has no answers."""

    def __init__(self, sources: Sources | None) -> None:
        self._sources = sources
        self.loops = lru_cache(maxsize=None)(self._loops)
        self.call = lru_cache(maxsize=None)(self._call)
        self.function = lru_cache(maxsize=None)(self._function)
        self.sleeps = lru_cache(maxsize=None)(self._sleeps)
        self.statement = lru_cache(maxsize=None)(self._statement)
        self.made = lru_cache(maxsize=None)(self._made)
        self.knows = lru_cache(maxsize=None)(self._knows)
        self.typed_call = lru_cache(maxsize=None)(self._typed_call)
        self.flow = lru_cache(maxsize=None)(self._flow)
        self.of_tensor = lru_cache(maxsize=None)(self._of_tensor)
        self.reads_another = lru_cache(maxsize=None)(self._reads_another)

    def _tree(self, file: str) -> ast.Module | None:
        if self._sources is None:
            return None
        return next((found.tree for found in self._sources.find(file) if found.tree is not None), None)

    def _nodes(self, file: str) -> Iterator[ast.AST]:
        tree = self._tree(file)
        return ast.walk(tree) if tree is not None else iter(())

    def text(self, file: str, line: int) -> str:
        """Return a line's text."""
        if self._sources is None:
            return ""
        for found in self._sources.find(file):
            if found.tree is not None and 0 < line <= len(found.lines):
                return found.lines[line - 1].strip()
        return ""

    def _function(self, file: str, line: int) -> int:
        """Return the first line of the innermost function around a line; 0 outside of any."""
        kinds = ast.FunctionDef | ast.AsyncFunctionDef
        return max((_begins(node) for node in self._around(file, line) if isinstance(node, kinds)), default=0)

    def assigned(self, file: str, first_line: int, name: str) -> int:
        """Return the first line of a function that gives a variable a value; 0 without one."""
        function = next((node for node in self._nodes(file) if _begins(node) == first_line), None)
        for node in ast.walk(function) if function is not None else ():
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if isinstance(node, ast.stmt) and any(item is not None and dotted(item) == name for item in targets):
                return node.lineno
        return 0

    def values(self, position: Position, name: str) -> list[ast.expr]:
        """Return what a name or attribute is set to in the function around a position, or else in its file.

        Nothing for an argument, or for what a loop or an import gives.
        """
        around = list(self._around(position.file, position.line))
        for scope in reversed([node for node in around if isinstance(node, Scope)]):
            if not isinstance(scope, ast.Module) and name in parameters(scope):
                break
            found = [
                value
                for node in ast.walk(scope)
                for target, value in set_by(node)
                if dotted(target) == name and isinstance(value, ast.expr)
            ]
            if found and name not in shared_names(scope):
                return found
        return []

    def _typed_call(self, position: Position) -> str:
        """Return what the frame's instruction calls, with what made the object in its place: ``io.BytesIO.write``."""
        call = self.call(position)
        name, _, method = call.rpartition(".")
        values = self.values(position, name) if name else []
        makers = {dotted(value.func) if isinstance(value, ast.Call) else "" for value in values}
        maker = makers.pop() if len(makers) == 1 else ""
        return f"{maker}.{method}" if maker else call

    def _knows(self, position: Position) -> bool:
        """Whether a frame calls a name by itself, a module's, or a method of what was made by a known call."""
        call = self.call(position)
        name, _, method = call.partition(".")
        return not method or self.typed_call(position) != call or name in self._imported(position.file)

    def _imported(self, file: str) -> set[str]:
        imports = (node for node in self._nodes(file) if isinstance(node, ast.Import | ast.ImportFrom))
        return {alias.asname or alias.name.partition(".")[0] for node in imports for alias in node.names}

    def _reads_another(self, position: Position, steps: int) -> bool | None:
        """Whether a frame reads another file in each turn of all loops around it, from that of the steps inwards.

        ``steps`` : the line of the loop of the steps. False where it writes, or a constant names the file; None where
        that is not known.
        """
        call = self._called(position)
        if call is None:
            return False if any(map(_writes, self._at(position))) else None
        doing: list[ast.expr] = [call]
        if _called_name(call) == "close":  # what was opened to write is written by then
            doing += self.values(position, dotted(call.func).removesuffix(".close"))
        if any(map(_writes, doing)):
            return False
        named = call.args[:1] or [keyword.value for keyword in call.keywords]
        named += [call.func.value] if isinstance(call.func, ast.Attribute) else []
        loops = self.loops(position.file, position.line)
        behind = self._behind(named, loops, position)
        parts = [part for nodes in (named, *behind.values()) for node in nodes for part in ast.walk(node)]
        if any(isinstance(part, ast.Constant) and _CHANGES_TABLE.match(str(part.value)) for part in parts):
            return False
        inner = loops[next((at for at, loop in enumerate(loops) if loop.lineno == steps), 0) :]
        if inner and all(behind.keys() & _turning(loop) for loop in inner):
            names = self._behind(named, loops, position, _followed)
            another = all(names.keys() & _turning(loop) for loop in inner) and _READS.search(_called_name(call))
            return True if another else None
        imported = self._imported(position.file)
        fixed = all(name in imported or len(values) == 1 for name, values in behind.items())
        return False if fixed and not any(isinstance(part, ast.Call) for part in parts) else None

    def _behind(
        self,
        nodes: Sequence[ast.expr],
        loops: Sequence[Loop],
        position: Position,
        names_of: Callable[[ast.AST], set[str]] = names_in,
    ) -> dict[str, list[ast.expr]]:
        """Return the names in expressions and in what they are set to, by loops as well, with that.

        ``names_of`` : which of the names in an expression are meant.
        """
        behind: dict[str, list[ast.expr]] = {}
        pending = list(nodes)
        heads = [head for loop in loops for head in _heads(loop)]
        for node in pending:
            for name in names_of(node) - behind.keys():
                behind[name] = self.values(position, name)
                behind[name] += [head.iter for head in heads if name in stored_names(head.target)]
                pending += behind[name]
        return behind

    def _of_tensor(self, position: Position) -> bool:
        """Whether the frame's instruction is arithmetic on a tensor, or a method of one, that torch has made."""
        nodes = [node for node in self._at(position) if isinstance(node, ast.Call | ast.BinOp)]
        if not nodes:
            return False
        around = list(self._around(position.file, position.line))
        *_, statement = (node for node in around if isinstance(node, ast.stmt))
        held = self.flow(*(node for node in around if isinstance(node, Scope))).held.get(statement, {})
        own = _own_names(statement, nodes[0])
        held = {name: tensor for name, tensor in held.items() if name not in own}
        try:
            return any(is_tensor(node, held) for node in nodes)
        except RecursionError:  # as a sum of a thousand terms does
            return False

    def _flow(self, *scopes: Scope) -> Flow:
        """Return what names hold in the last of these scopes; those around it have run to their end by then."""
        around = self.flow(*scopes[:-1]).end if scopes[:-1] else {}
        try:
            return Flow(scopes[-1], around)
        except RecursionError:  # nests too deep, as a thousand elifs do: nothing is known
            return Flow(ast.Module([], []), {})

    def _sleeps(self, position: Position) -> bool:
        """Return whether a line of a library's calls ``sleep``, by its text: parsing libraries takes long."""
        readable = self._sources is not None and Path(position.file).is_file()
        return readable and _SLEEP.match(linecache.getline(position.file, position.line)) is not None

    def calls(self, name: str, file: str) -> tuple[int, ...]:
        """Return the lines on which a file uses a name such as ``torch.compile``, decorators and partials included."""
        uses = (node for node in self._nodes(file) if isinstance(node, ast.Attribute) and dotted(node) == name)
        return tuple(sorted({node.lineno for node in uses}))

    def _made(self, name: str, file: str, without: str = "") -> tuple[int, ...]:
        """Return the lines on which a file calls something of this name, ``without`` an argument of that name."""
        lines = {
            node.lineno
            for node in self._nodes(file)
            if isinstance(node, ast.Call)
            and dotted(node.func).rpartition(".")[2] == name
            and not any(keyword.arg == without for keyword in node.keywords)
        }
        return tuple(sorted(lines))

    def readers(self, file: str, line: int) -> set[int]:
        """Return the lines of the statements that read, in the same function, what the statement at a line assigns."""
        around = list(self._around(file, line))
        assigned = next((node for node in reversed(around) if isinstance(node, ast.Assign | ast.AnnAssign)), None)
        if assigned is None:
            return set()
        names = stored_names(assigned)
        scope = next(node for node in reversed(around) if isinstance(node, ast.Module | ast.FunctionDef))
        return {
            number
            for node in ast.walk(scope)
            if isinstance(node, ast.Assign | ast.AugAssign | ast.Expr | ast.Return) and node.lineno > line
            if any(isinstance(part, ast.Name) and part.id in names for part in ast.walk(node))
            for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        }

    def options(self, name: str, file: str) -> tuple[int, ...]:
        """Return the lines on which a file passes True as the argument of this name."""
        return tuple(
            node.value.lineno
            for node in self._nodes(file)
            if isinstance(node, ast.keyword)
            and node.arg == name
            and isinstance(node.value, ast.Constant)
            and node.value.value is True
        )

    def changes_state(self, file: str, first_line: int) -> bool:
        """Return whether the function that begins at a line may change what it is given, or what others see.

        True where it cannot be read.
        """
        nodes = self._nodes(file)
        functions = [node for node in nodes if isinstance(node, ast.FunctionDef) and _begins(node) == first_line]
        return not functions or any(map(_changes_state, functions))

    def _around(self, file: str, line: int, column: int | None = None) -> Iterator[ast.AST]:
        """Yield the nodes around a line, or around a column of it, outermost first."""
        node: ast.AST | None = self._tree(file)
        while node is not None:
            yield node
            node = next(
                (
                    child
                    for part in ast.iter_child_nodes(node)
                    for child in (part.body if isinstance(part, ast.match_case) else [part])
                    if _begins(child) <= line <= (getattr(child, "end_lineno", None) or 0)
                    and (column is None or _has_column(child, line, column))
                ),
                None,
            )

    def _loops(self, file: str, line: int) -> tuple[Loop, ...]:
        """Return the loops of the function that a line stands in, which repeat it; outermost first."""
        found: list[Loop] = []
        for node in self._around(file, line):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.clear()
            elif isinstance(node, ast.For | ast.AsyncFor | ast.While):
                # the iterable of a loop runs once, but what it yields is fetched in each round
                found.append(node)
        return (*found, *self._comprehensions(file, line))

    def _comprehensions(self, file: str, line: int) -> list[Loop]:
        statement = self._statement(file, line)
        if statement is None:
            return []
        heads = (ast.For, ast.While, ast.If, ast.With, ast.FunctionDef, ast.ClassDef, ast.Try)
        if isinstance(statement, heads) and statement.lineno != line:
            return []
        nodes: list[ast.AST] = [statement]
        if isinstance(statement, heads):  # of a compound statement its own line only
            nodes = [child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.expr)]
        return [
            inner
            for node in nodes
            for inner in ast.walk(node)
            if isinstance(inner, COMPREHENSIONS) and inner.lineno <= line <= (inner.end_lineno or 0)
        ]

    def _statement(self, file: str, line: int, column: int | None = None) -> ast.stmt | None:
        """Return the innermost statement that a line, or a column of it, belongs to."""
        around = list(self._around(file, line, column))
        return next((node for node in reversed(around) if isinstance(node, ast.stmt)), None)

    def _call(self, position: Position) -> str:
        """Return the dotted name that the frame's instruction calls; empty where it calls nothing by name."""
        called = self._called(position)
        return "" if called is None else dotted(called.func)

    def _called(self, position: Position) -> ast.Call | None:
        """Return the call that the frame's instruction makes; None where it is none, or not known."""
        if position.column is not None:
            return next((node for node in self._at(position) if isinstance(node, ast.Call)), None)
        statement = self._statement(position.file, position.line)
        calls = [node for node in ast.walk(statement or ast.Pass()) if isinstance(node, ast.Call)]
        mine = [node for node in calls if node.lineno <= position.line <= (node.end_lineno or 0)]
        return mine[0] if len(mine) == 1 else None

    def _at(self, position: Position) -> list[ast.expr]:
        """Return the expressions that stand where the frame's instruction does."""
        statement = self._statement(position.file, position.line, position.column) or ast.Pass()
        place = position.line, position.column, position.end_line, position.end_column
        return [
            node
            for node in [*ast.walk(statement), *(value for _, value in set_by(statement))]
            if isinstance(node, ast.expr)
            and (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset) == place
        ]


def _own_names(statement: ast.stmt, node: ast.expr) -> set[str]:
    """Return the variables of the comprehensions and lambdas of a statement that are around a part of it."""
    kinds = (*COMPREHENSIONS, ast.Lambda)
    around = [part for part in walk(statement) if isinstance(part, kinds) and holds(part, node)]
    given = {part.arg for outer in around for part in walk(outer) if isinstance(part, ast.arg)}
    return given.union(*map(stored_names, around))


def _heads(loop: Loop) -> Sequence[ast.For | ast.AsyncFor | ast.comprehension]:
    """Return what of a loop sets a name to what it goes through."""
    if isinstance(loop, ast.While):
        return []
    return [loop] if isinstance(loop, ast.For | ast.AsyncFor) else loop.generators


def _turning(loop: Loop) -> set[str]:
    """Return the names that have another value in each turn of a loop: what it goes through, and what it counts."""
    return {name for head in _heads(loop) for name in stored_names(head.target)} | {
        name
        for node in ast.walk(loop)
        for target, value in set_by(node)
        if isinstance(value, ast.BinOp)
        for name in stored_names(target) & _followed(value)
    }


def _followed(node: ast.AST) -> set[str]:
    """Return the variables in an expression of which each value gives it another: not ``n`` in ``n // 10``."""
    parts = [node]
    for part in parts:
        skipped = part.test if isinstance(part, ast.IfExp) else None
        if isinstance(part, ast.BinOp) and isinstance(part.op, ast.FloorDiv | ast.Mod):
            skipped = part.left
        if not isinstance(part, ast.Compare):
            parts += [child for child in ast.iter_child_nodes(part) if child is not skipped]
    return {part.id for part in parts if isinstance(part, ast.Name)}


def _called_name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else dotted(call.func)


def _writes(node: ast.expr) -> bool:
    """Whether an expression writes a file: what is stored into, or a call by its name or mode."""
    if not isinstance(node, ast.Call):
        return not isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
    given = node.args if _OPENS.search(_called_name(node)) else []
    values = [*given, *(keyword.value for keyword in node.keywords)]
    texts = [value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)]
    modes = [text for text in texts if set(text) <= set("rwaxbt+")]
    return any(set("wax") & set(mode) for mode in modes) or _WRITES.search(_called_name(node)) is not None


def _changes_state(function: ast.FunctionDef) -> bool:
    given, own = parameters(function), stored_names(function)
    return any(_changes(node, given, own) for node in ast.walk(function))


def _changes(node: ast.AST, given: set[str], own: set[str]) -> bool:
    """Whether a node of a function stores into what is not its ``own``, or calls something for what it does."""
    if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
        return isinstance(node, ast.Attribute) or not names_in(node.value) <= own
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        in_place = node.func.attr.endswith("_") and not node.func.attr.startswith("_")
        return (in_place or node.func.attr in CHANGES) and not names_in(node.func.value) <= own
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return bool(names_in(node.value) & given) and not names_in(node.value.func) & own
    return isinstance(node, ast.Global | ast.Nonlocal)


def _begins(node: ast.AST) -> int:
    decorators = [decorator.lineno for decorator in getattr(node, "decorator_list", ())]
    return int(min([getattr(node, "lineno", 1 << 30), *decorators]))


def _has_column(node: ast.AST, line: int, column: int) -> bool:
    """Whether a node that spans a line does so at a column."""
    begin, end = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
    after = line != begin or getattr(node, "col_offset", 0) <= column
    return after and (line != end or column < getattr(node, "end_col_offset", 0))


def dotted(node: ast.expr) -> str:
    """Return the name that an expression is, ``a.b`` for an attribute; empty for what has none."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def elementwise(loop: Loop) -> bool:
    """Whether a loop's body computes on single elements: indexes by the loop's variable, or does arithmetic on it.

    What is spread out as arguments (``turn(*sweeps[k])``) is an item of several parts, and ``range(0, n, size)`` counts
    batches.
    """
    if isinstance(loop, ast.While):
        return False
    names = {name for head in _heads(loop) if not _in_batches(head.iter) for name in names_in(head.target)}
    bodies = loop.body if isinstance(loop, ast.For | ast.AsyncFor) else [loop]
    for body in bodies:
        spread = {part for node in ast.walk(body) if isinstance(node, ast.Starred) for part in ast.walk(node.value)}
        for node in ast.walk(body):
            if isinstance(node, ast.Subscript) and names & names_in(node.slice) and node not in spread:
                return True
            if isinstance(node, ast.BinOp | ast.Compare | ast.AugAssign) and names & names_in(node):
                return True
    return False


def _in_batches(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "range" and len(node.args) == 3


def for_all_rows(loop: Loop) -> bool:
    """Whether what a loop's variable indexes holds all rows: ``x[:, t]``, ``x[..., t]``, ``x[rows, last[:, t]]``."""
    if isinstance(loop, ast.While):
        return False
    names = {name for head in _heads(loop) for name in names_in(head.target)}
    indexes = [
        node.slice for node in ast.walk(loop) if isinstance(node, ast.Subscript) and names & names_in(node.slice)
    ]
    innermost = [index for index in indexes if not any(other in ast.walk(index) for other in indexes if other != index)]
    first = [ast.unparse(index.elts[0]) for index in innermost if isinstance(index, ast.Tuple) and index.elts]
    picks_rows = any(index not in innermost and not isinstance(index, ast.Tuple) for index in indexes)
    return bool(first) and not picks_rows and all(text in (":", "...") for text in first)


def sequential(loop: Loop) -> bool:
    """Whether each round of a loop needs what the one before computed: a name is read before the round sets it.

    Sums and counts (``+=``) are no such need.
    """
    if not isinstance(loop, ast.For | ast.AsyncFor | ast.While):
        return False
    first_set: dict[str, int] = {}
    first_read: dict[str, int] = {}
    for statement in loop.body:
        for node in ast.walk(statement):
            if not isinstance(node, ast.Name):
                continue
            seen = first_set if isinstance(node.ctx, ast.Store) else first_read
            seen[node.id] = min(seen.get(node.id, node.lineno), node.lineno)
        for node in ast.walk(statement):
            if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                first_set.pop(node.target.id, None)
    inner = {name for node in ast.walk(loop) if isinstance(node, ast.For) for name in names_in(node.target)}
    return any(name in first_read and first_read[name] <= line for name, line in first_set.items() if name not in inner)

"""What stays the same from turn to turn: an abstract run of the code that repeats.

A turn is the body of a loop, or one call of a function that is a step by itself (``forward``, ``__getitem__``). The run
goes through a turn in order and into the functions of the file that it calls. It follows for each expression whether
its value is the same in every turn, what it costs, and whether computing it does anything else. What is costly, the
same, and does nothing else need not be computed again.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from torchtriage.diagnose.lint.conditions import ends, is_rare, is_switch, leaves
from torchtriage.diagnose.lint.facts import Module, SourceCall, SourceFunction, SourceLoop, is_step
from torchtriage.diagnose.lint.syntax import keyword, literal, names_in, path_of
from torchtriage.diagnose.lint.torch_names import REDUCTIONS, words

__all__ = ["COSTLY", "PURE_METHODS", "Repeated", "repeated"]

FIXED, VARIES = 0, 1
"""Levels of an expression: the same in every turn, or not known to be."""

COSTLY = 10
"""Weight from which work is worth a line: a search, product, sort, fit or loop over elements. Light work weighs 1."""

_MANY = 4
"""How often a loop of unknown length is taken to turn."""

_HEAVY = words("""
    matmul mm bmm einsum tensordot kron outer cdist pairwise_distances pdist inv inverse pinv svd eig eigh eigvals
    qr cholesky solve lstsq slogdet matrix_exp matrix_power expm sort argsort topk unique median quantile percentile
    nanmedian histogram histc bincount meshgrid block_diag fft ifft rfft irfft fft2 stft conv1d conv2d conv3d
    convolve correlate cov corrcoef interpolate resize fit fit_transform transform kneighbors kneighbors_graph
    to_dense cumsum searchsorted mel melscale_fbanks create_dct chroma adjacency_matrix shortest_path cKDTree KDTree
    tokenize word_tokenize encode batch_encode_plus
""")
_CURVES = words("sin cos tan exp log log2 log10 log1p pow sigmoid tanh softmax logsumexp norm std var")
_CHEAP = words("""
    to cpu cuda float half double int long bool type dtype view reshape flatten squeeze unsqueeze expand expand_as
    permute transpose contiguous size dim numel item tolist numpy detach empty zeros ones full zeros_like ones_like
    empty_like full_like tensor as_tensor from_numpy asarray device shape eye arange keys values items get split join
    strip lower upper format clone index_select Size finfo iinfo is_tensor isinstance len range zip enumerate sqrt
""")
PURE_METHODS = words("""
    abs all any amax amin argmax argmin argsort astype bfloat16 ceil chunk clamp clamp_min clamp_max clip clone
    contiguous copy cos count cpu cuda cumprod cumsum detach diag diagonal diff dim div dot double endswith eq exp
    expand expand_as eye flatten flip float floor format ge get gt half index_select int inverse item items join keys
    kneighbors le log long lower lstrip lt masked_fill matmul max mean median min mm mul ne new_full new_ones
    new_tensor new_zeros nonzero norm numel numpy outer permute pow prod quantile ravel repeat repeat_interleave
    replace reshape reciprocal round rsplit rstrip rsqrt scatter sigmoid sin size softmax sort split sqrt square squeeze
    startswith std strip sub sum svd t tanh tile title to tolist topk transpose tril triu type type_as unfold unique
    unsqueeze upper values var view view_as where zfill to_dense to_sparse add gather bmm
""")
_ESTIMATES = words("fit fit_transform transform predict kneighbors kneighbors_graph")
_PARTS = words("parameters named_parameters modules named_modules children buffers state_dict")
_MUTATORS = words("""
    append extend insert pop popleft appendleft remove clear update setdefault add discard sort reverse put
    fill fill_diagonal resize load_state_dict add_edge add_edges_from add_node add_nodes_from
""")
_PURE_BUILTINS = words("""
    abs all any bool complex dict divmod enumerate filter float frozenset getattr hasattr int isinstance len list map
    max min pow range reversed round set slice sorted str sum tuple type zip repr ord chr callable
""")
_PURE_LIBRARY = re.compile(
    r"(torch\.(?!cuda|distributed|load|save|manual_seed|seed|set_|get_|utils|optim|jit|compile|nn\.(?!functional)|hub"
    r"|Generator|multiprocessing|profiler|autograd|backends|no_grad|inference_mode|autocast|amp|ops|_)"
    r"|numpy\.(?!random|load|save|fromfile|loadtxt|genfromtxt|memmap|put|copyto|fill)"
    r"|math\.|scipy\.|itertools\.|operator\.|einops\.(re|ein)|librosa\.(?!load)"
    r"|torchaudio\.functional\.|sklearn\.(preprocessing|neighbors|metrics|decomposition|feature_extraction)\."
    r"|networkx\.|cv2\.(get|create)|skimage\.(filters|morphology)\.|torch_geometric\.(nn|utils)\.|torch_cluster\."
    r"|collections\.(Counter|OrderedDict)|functools\.reduce)"
)
_RANDOM = re.compile(
    r"rand|shuffle|(^|[._])sample|multinomial|normal(_|$)|bernoulli|dropout|choice|permutation|default_rng|Generator"
    r"|uniform|poisson|integers|seed|empty$"
)
_SETTINGS = words("config cfg args hparams opt options settings params device dtype")
_CACHES = re.compile(r"(^|\.)(lru_cache|cache|cached|memoize|cached_property|property)$|cache")
_MEASURES = re.compile(r"warm|bench|(^|_)tim(e|ing|eit)|latency|throughput|profil|repeat|repetition|(^|_)reps?(_|$)")
_LOADS = re.compile(r"(^|\.)(\w*Dataset)$")
_TOKENIZER = re.compile(r"(^|[._])(tok|tokenizer|tokenize|vectorizer|word_tokenize)$")
_DEPTH = 8
_PASSES = 3
_PIECES, _TOGETHER, _HELPER = 3, 8, 5


_Chunk = tuple[ast.expr | ast.stmt, int, SourceFunction | None]


@dataclass(frozen=True, eq=False)
class Repeated:
    """An expression that each turn computes again from what stays the same.

    ``loop`` : the loop whose turns do, None for a function that is a step. ``function`` : where it
    stands. ``weight`` : what it costs, in light operations.
    """

    node: ast.expr | ast.stmt
    weight: int
    function: SourceFunction | None
    loop: SourceLoop | None
    step: SourceFunction | None


@dataclass(eq=False)
class _Reading:
    """What is known of an expression, or of all that a call does."""

    level: int = FIXED
    weight: int = 0
    effect: bool = False
    chunks: list[_Chunk] = field(default_factory=list)
    mutates: frozenset[str] = frozenset()


def repeated(module: Module) -> tuple[Repeated, ...]:
    """Return the costly work of a file that turns do again from what stays the same, each place once."""
    facts = _Facts(module)
    found: dict[ast.AST, Repeated] = {}
    for run in _runs(facts):
        chunks = run.chunks()
        for node, weight, function in chunks:
            # a helper that computes a table is worth a line where a step calls it
            light = run.stepwise and isinstance(node, ast.Call) and bool(facts.callees(node))
            if weight >= (_HELPER if light else COSTLY):
                found.setdefault(node, Repeated(node, weight, function, run.loop, run.step))
        if run.stepwise:
            for node, weight, function in _chains(chunks):
                found.setdefault(node, Repeated(node, weight, function, run.loop, run.step))
    return tuple(found.values())


def _chains(chunks: list[_Chunk]) -> Iterator[_Chunk]:
    """Yield the heaviest piece of light work whose pieces together are costly: a table made line by line."""
    by_function: dict[SourceFunction | None, list[_Chunk]] = defaultdict(list)
    for chunk in chunks:
        by_function[chunk[2]].append(chunk)
    for pieces in by_function.values():
        total = sum(weight for _, weight, _ in pieces)
        if len(pieces) >= _PIECES and max(weight for _, weight, _ in pieces) < COSTLY and total >= _TOGETHER:
            first = max(pieces, key=lambda piece: piece[1])
            yield first[0], total, first[2]


class _Facts:
    """What all runs over one file ask for."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.calls: dict[ast.expr, SourceCall] = {call.node: call for call in module.calls}
        self.by_function: dict[SourceFunction | None, list[SourceCall]] = defaultdict(list)
        for call in module.calls:
            self.by_function[call.context.function].append(call)
        self._stores: dict[ast.AST, frozenset[str]] = {}
        self._indexed: dict[ast.AST, frozenset[str]] = {}
        self._locals: dict[ast.AST, frozenset[str]] = {}

    @cached_property
    def learned(self) -> frozenset[str]:
        """Return the names and attributes that training changes."""
        return _learned(self.module)

    @cached_property
    def searching(self) -> set[SourceFunction]:
        """Return the functions with costly calls of nothing but what they are given."""
        return {
            function
            for function, calls in self.by_function.items()
            if function is not None
            and any(
                call.attr in _HEAVY and names_in(call.node) <= _parameters(function.node) | self.known for call in calls
            )
        }

    @cached_property
    def known(self) -> set[str]:
        """Return names that stand for the same thing everywhere in the file."""
        return {*self.module.aliases, *(function.name for function in self.module.functions)}

    def callees(self, node: ast.Call) -> tuple[SourceFunction, ...]:
        """Return the functions of the file that a call runs."""
        call = self.calls.get(node)
        return call.callees if call is not None else ()

    def stores(self, node: ast.AST) -> frozenset[str]:
        """Return the names of the attributes that a piece of syntax gives values to, or changes."""
        if node not in self._stores:
            self._stores[node] = frozenset(_stored_attributes(node))
        return self._stores[node]

    def indexed(self, node: ast.AST) -> frozenset[str]:
        """Return the paths of what is indexed by a name: ``self.x[i]``, ``x[idx]``."""
        if node not in self._indexed:
            self._indexed[node] = frozenset(
                re.sub(r"\.(iloc|loc|values)$", "", path_of(part.value))
                for part in ast.walk(node)
                if isinstance(part, ast.Subscript)
                and isinstance(part.ctx, ast.Load)
                and isinstance(part.slice, ast.Name)
            )
        return self._indexed[node]

    def locals(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> frozenset[str]:
        """Return the names that a function binds itself."""
        if node not in self._locals:
            shared = {
                name for part in ast.walk(node) if isinstance(part, ast.Global | ast.Nonlocal) for name in part.names
            }
            self._locals[node] = frozenset(_bound(node) | _parameters(node)) - shared
        return self._locals[node]

    def reached(self, calls: Iterable[SourceCall]) -> set[SourceFunction]:
        """Return the functions of the file that calls lead to."""
        found: set[SourceFunction] = set()
        pending = [callee for call in calls for callee in call.callees]
        while pending:
            function = pending.pop()
            if function not in found:
                found.add(function)
                pending += [callee for call in self.by_function[function] for callee in call.callees]
        return found


def _runs(facts: _Facts) -> Iterator[_Run]:
    module = facts.module
    for loop in module.loops:
        if loop.comprehension or loop.short or loop.times or not isinstance(loop.node, ast.stmt):
            continue
        if not module.is_program and not (loop.steps and _may_stay(facts, loop)):
            continue
        if _MEASURES.search(loop.function.qualname if loop.function is not None else "") or _MEASURES.search(
            " ".join(sorted(loop.targets)) + " " + loop.over
        ):
            continue
        axes = _axes(module, loop)
        yield from [_Run(facts, loop, None, axis) for axis in axes] or [_Run(facts, loop, None, None)]
    for function in module.functions:
        if _is_turn(function) and _may_repeat(facts, function):
            yield _Run(facts, None, function, None)


def _is_turn(function: SourceFunction) -> bool:
    """Return whether a function's calls are turns of something that is not in sight."""
    if is_step(function) or function.serves:
        return True
    owner = function.owner
    return (
        function.name == "__getitem__"
        and owner is not None
        and (function.loads or any(_LOADS.search(base) for base in owner.bases))
    )


def _may_repeat(facts: _Facts, function: SourceFunction) -> bool:
    """Return whether anything costly there takes none of what the function is given."""
    if facts.module.is_program or function.name == "__getitem__":
        return True
    given = _parameters(function.node) - {"self"}
    return any(
        call.attr in _HEAVY and not (names_in(call.node) & given) and names_in(call.node) & {"self"}
        for call in facts.by_function[function]
    )


def _may_stay(facts: _Facts, loop: SourceLoop) -> bool:
    """Return whether anything costly in a loop, or in what it calls, takes none of what the loop changes."""
    changing = loop.targets | loop.assigned.keys()
    inside = [call for call in facts.by_function[loop.function] if loop in call.context.loops()]
    if any(call.attr in _HEAVY and not names_in(call.node) & changing for call in inside):
        return True
    return not facts.searching.isdisjoint(facts.reached(inside))


def _axes(module: Module, loop: SourceLoop) -> list[str]:
    """Return the targets of a loop over a product of lists: each stays while another one changes."""
    node = loop.node
    if not isinstance(node, ast.For) or not isinstance(node.target, ast.Tuple):
        return []
    source: ast.expr = node.iter
    for _ in range(4):
        if isinstance(source, ast.Name):
            made = [
                one.expression
                for one in module.assigns
                if one.target == source.id and one.how == "=" and one.context.function is loop.function
            ]
            if len(made) != 1:
                return []
            source = made[0]
        elif isinstance(source, ast.Call) and path_of(source.func) in ("list", "tuple", "tqdm") and source.args:
            source = source.args[0]
        else:
            break
    n_axes = 0
    if isinstance(source, ast.Call) and module.name_of(source.func) == "itertools.product":
        n_axes = len(source.args)
    elif isinstance(source, ast.ListComp | ast.GeneratorExp) and isinstance(source.elt, ast.Tuple):
        n_axes = len(source.generators)
    names = [item.id for item in node.target.elts if isinstance(item, ast.Name)]
    return names if n_axes > 1 and n_axes == len(node.target.elts) == len(names) else []


class _Run:
    """One abstract run of a turn."""

    def __init__(self, facts: _Facts, loop: SourceLoop | None, step: SourceFunction | None, axis: str | None) -> None:
        self.facts, self.module = facts, facts.module
        self.loop, self.step, self.axis = loop, step, axis
        body = loop.node if loop is not None else step.node if step is not None else self.module.tree
        self.body: ast.AST = body
        function = loop.function if loop is not None else step
        inside = [call for call in facts.by_function[function] if loop is None or loop in call.context.loops()]
        reached = self.facts.reached(inside)
        self.stored: set[str] = set(self.facts.stores(body))
        for function in reached:
            if function.name != "__init__":
                self.stored |= self.facts.stores(function.node)
        everything = [*inside, *(call for function in reached for call in self.facts.by_function[function])]
        self.trains = loop is None or any(
            call.attr in ("backward", "step", "load_state_dict", "train", "manual_backward") for call in everything
        )
        self._reached = reached
        self.mutated: set[str] = set()
        self.shared = _bound(body) if loop is not None else set()
        self._visits: dict[tuple[SourceFunction, frozenset[str], bool], _Reading] = {}
        self._active: set[SourceFunction] = set()

    def chunks(self) -> list[_Chunk]:
        """Return the largest pieces of work that stay the same, with what they cost."""
        for _ in range(_PASSES):
            before = len(self.mutated)
            self._visits.clear()
            if self.loop is not None:
                reading = self._loop()
            else:
                assert self.step is not None
                reading = self._visit(self.step, frozenset(_parameters(self.step.node)) - {"self"}, own=True)
            if len(self.mutated) == before:
                break
        return [chunk for chunk in reading.chunks if self._is_common(chunk)]

    def _is_common(self, chunk: _Chunk) -> bool:
        """Return whether a piece of a function stays the same in every call that a turn makes of it."""
        node, _, function = chunk
        calls = [reading for (called, *_), reading in self._visits.items() if called is function]
        return all(
            any(node is part for part, *_ in reading.chunks) or (reading.level == FIXED and not reading.effect)
            for reading in calls
        )

    @property
    def stepwise(self) -> bool:
        """Whether its turns are steps of training or inference."""
        return self.loop is None or self.loop.steps

    def is_whole(self, node: ast.expr) -> bool:
        """Return whether an expression is all of an array of which each turn takes a few rows."""
        while isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            node = node.value  # a column
        path = path_of(node)
        return bool(path) and path in self._indexed

    @cached_property
    def _indexed(self) -> set[str]:
        """Return the paths of what a turn takes elements of."""
        parts = [self.body, *(function.node for function in self._reached)]
        return {path for part in parts for path in self.facts.indexed(part)}

    def _loop(self) -> _Reading:
        assert self.loop is not None
        node = self.loop.node
        frame = _Frame(self, self.loop.function, top=True)
        for name in self.shared | self.mutated:
            frame.levels[name] = VARIES
        if isinstance(node, ast.For | ast.AsyncFor):
            for name in names_in(node.target):
                varies = self.axis is None or name == self.axis
                frame.levels[name] = VARIES if varies else FIXED
        if isinstance(node, ast.For | ast.AsyncFor | ast.While):
            frame.block(node.body)
        return frame.reading()

    def _visit(self, function: SourceFunction, varying: frozenset[str], *, own: bool) -> _Reading:
        """Return what a call of a function does, where some of what it is given varies."""
        key = (function, varying, own)
        known = self._visits.get(key)
        if known is not None:
            return known
        if function in self._active or len(self._active) >= _DEPTH:
            return _Reading(VARIES, 0, True)
        self._active.add(function)
        frame = _Frame(self, function, own=own)
        for name in _parameters(function.node):
            frame.levels[name] = VARIES if name in varying else FIXED
        frame.block(function.node.body)
        self._active.discard(function)
        reading = frame.reading()
        if function.is_generator:
            reading.level = VARIES
        if any(_CACHES.search(decorator) for decorator in function.decorators):
            reading = _Reading(reading.level, 0, reading.effect)
        self._visits[key] = reading
        return reading


class _Frame:
    """The names of one function in one run."""

    def __init__(self, run: _Run, function: SourceFunction | None, *, own: bool = True, top: bool = False) -> None:
        self.run, self.function, self.own, self.top = run, function, own, top
        self.module = run.module
        self.levels: dict[str, int] = {}
        self.fresh: set[str] = set()
        self.mutates: set[str] = set()
        self.result, self.effect = FIXED, False
        self.chunks: list[_Chunk] = []
        self.conditional = 0
        self.memo = False
        self.inner = 0
        self.leaves = False
        self.made: dict[str, ast.expr] = {}
        self.varied = 0

    def reading(self) -> _Reading:
        """Return what the function does as a whole."""
        weight = sum(weight for _, weight, _ in self.chunks)
        return _Reading(self.result, weight, self.effect, self.chunks, frozenset(self.mutates))

    # -- statements ----------------------------------------------------------------------------

    def block(self, body: Iterable[ast.stmt]) -> None:
        """Go through statements in order."""
        for statement in body:
            self.statement(statement)

    def statement(self, node: ast.stmt) -> None:
        """Go through one statement."""
        if isinstance(node, ast.Assign):
            reading = self.whole(node.value)
            for target in node.targets:
                self.bind(target, reading, node.value)
        elif isinstance(node, ast.AnnAssign):
            if node.value is not None:
                self.bind(node.target, self.whole(node.value), node.value)
        elif isinstance(node, ast.AugAssign):
            reading = self.whole(node.value)
            self.change(node.target, reading.level, rebinds=isinstance(node.target, ast.Name))
        elif isinstance(node, ast.Expr):
            before = len(self.chunks)
            self.whole(node.value)
            # what is called for what it does is no result that could be used again; what a list is given is
            given = node.value.args[0] if isinstance(node.value, ast.Call) and _adds(node.value) else None
            self.chunks[before:] = [
                (given if part is node.value and given is not None else part, weight, function)
                for part, weight, function in self.chunks[before:]
                if part is not node.value or given is not None
            ]
        elif isinstance(node, ast.Return):
            level = self.whole(node.value).level if node.value is not None else FIXED
            self.result = max(self.result, level, VARIES if self.conditional else FIXED)
            self.leaves = self.leaves or bool(self.conditional)
        elif isinstance(node, ast.If):
            self._if(node)
        elif isinstance(node, ast.For | ast.AsyncFor | ast.While):
            self._inner_loop(node)
        elif isinstance(node, ast.With | ast.AsyncWith):
            for item in node.items:
                reading = self.eval(item.context_expr)
                if item.optional_vars is not None:
                    self.bind(item.optional_vars, _Reading(VARIES), None)
            self.block(node.body)
        elif isinstance(node, ast.Try):
            self.block(node.body)
            for handler in node.handlers:
                self._aside(handler.body)
            self.block(node.orelse)
            self.block(node.finalbody)
        elif isinstance(node, ast.Break | ast.Continue):
            self.leaves = self.leaves or bool(self.conditional)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self.levels[node.name] = FIXED
        elif isinstance(node, ast.Global | ast.Nonlocal):
            self.effect = True
        elif isinstance(node, ast.Match):
            self.eval(node.subject)
            for case in node.cases:
                self._aside(case.body)

    def whole(self, node: ast.expr) -> _Reading:
        """Read an expression that stands by itself, and keep it when it stays the same."""
        reading = self.eval(node)
        self.effect = self.effect or reading.effect
        self.varied += reading.level != FIXED or reading.effect
        self._keep(node, reading)
        return reading

    def _keep(self, node: ast.expr | ast.stmt, reading: _Reading) -> None:
        found = reading.chunks
        if reading.level == FIXED and not reading.effect:
            found = [(node, reading.weight, self.function)] if reading.weight else []
        if not self.conditional and not self.memo:
            many = _MANY if self.inner else 1
            self.chunks += [(item, weight * many, function) for item, weight, function in found]

    def bind(self, target: ast.expr, reading: _Reading, value: ast.expr | None) -> None:
        """Give what stands left of ``=`` its level."""
        if isinstance(target, ast.Name):
            self.levels[target.id] = VARIES if self.conditional else reading.level
            if value is not None and not isinstance(value, ast.Name | ast.Attribute | ast.Subscript):
                self.fresh.add(target.id)
                self.made[target.id] = value
            else:
                self.fresh.discard(target.id)
        elif isinstance(target, ast.Tuple | ast.List):
            parts = (
                value.elts if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts) else None
            )
            for index, item in enumerate(target.elts):
                if parts is not None:
                    self.bind(item, self.eval(parts[index]), parts[index])
                else:
                    self.bind(item, reading, value)
        elif isinstance(target, ast.Starred):
            self.bind(target.value, reading, value)
        elif isinstance(target, ast.Attribute | ast.Subscript):
            self.change(target, reading.level)

    def change(self, target: ast.expr, level: int, *, rebinds: bool = False) -> None:
        """Note that what a name stands for, or a part of it, gets another value."""
        node = target
        while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
            if isinstance(node, ast.Subscript):
                level = max(level, self.eval(node.slice).level)
            node = node.func if isinstance(node, ast.Call) else node.value
        if self.conditional:
            level = VARIES
        if not isinstance(node, ast.Name):
            self.effect = True
            return
        name = node.id
        own = name == "self" and self.function is not None and self.function.name == "__init__"
        if own:
            return
        if name in self.fresh:
            self.levels[name] = max(self.levels.get(name, FIXED), level)
            if level != FIXED and name in self.made:
                # each turn needs one of its own
                self.chunks = [item for item in self.chunks if item[0] is not self.made[name]]
        elif rebinds and name in self.levels:
            # a plain ``x += 1`` of a name that this turn has bound
            self.levels[name] = max(self.levels[name], level)
            self.mutates.add(name)
            self.varied += level != FIXED
        else:
            self.effect = True
            self.varied += 1
            self.mutates.add(name)
            if name != "self":
                self.levels[name] = VARIES
                if self.top or self.function is None or name not in self.run.facts.locals(self.function.node):
                    self.run.mutated.add(name)

    def _if(self, node: ast.If) -> None:
        test = self.eval(node.test)
        self.effect = self.effect or test.effect
        varies = test.level != FIXED
        self.varied += varies
        if not varies and not self.conditional and not self.memo:
            self._keep(node.test, test)
        seldom = is_rare(node.test) or is_switch(node.test) or ends(node.body)
        before = dict(self.levels)
        if varies or seldom:
            self._aside(node.body)
        else:
            self.block(node.body)
        after = self.levels
        self.levels = before
        if varies or ends(node.orelse) or is_rare(node.test, negated=True):
            self._aside(node.orelse)
        else:
            self.block(node.orelse)
        for name, level in after.items():
            self.levels[name] = max(self.levels.get(name, level), level)
        if varies and leaves(node.body) and not node.orelse and _looks_up(node):
            self.memo = True

    def _aside(self, body: list[ast.stmt]) -> None:
        """Go through what does not run in every turn."""
        self.conditional += 1
        self.block(body)
        self.conditional -= 1

    def _inner_loop(self, node: ast.For | ast.AsyncFor | ast.While) -> None:
        if isinstance(node, ast.While):
            reading = self.eval(node.test)
        else:
            reading = self.whole(node.iter)
        self.effect = self.effect or reading.effect
        assigned = _bound(node)
        many = not _is_short(node)
        left, self.leaves = self.leaves, False
        saved = self.chunks
        for _ in range(2):
            self.chunks, before = [], self.varied
            if isinstance(node, ast.For | ast.AsyncFor):
                self.bind(node.target, _Reading(_over(self.module, node.iter, reading.level)), node.iter)
            self.inner += many
            self.block(node.body)
            self.inner -= many
        if self.leaves or reading.level != FIXED:
            for name in assigned:
                self.levels[name] = VARIES
        self.leaves = left
        inside = self.chunks
        if reading.level == FIXED and before == self.varied and not reading.effect:
            # all of it stays the same
            nested = self.inner > 0 and _counts(node)
            weight = sum(weight for _, weight, _ in inside) + (COSTLY if many and (nested or _by_element(node)) else 0)
            inside = [(node, weight, self.function)] if weight else []
        self.chunks = saved + ([] if self.conditional or self.memo else inside)
        self.block(node.orelse)

    # -- expressions ---------------------------------------------------------------------------

    def eval(self, node: ast.expr) -> _Reading:
        """Return whether an expression stays the same, and what it costs."""
        if isinstance(node, ast.Constant | ast.Lambda):
            return _Reading()
        if isinstance(node, ast.Name):
            return _Reading(self.name(node))
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            return self._comprehension(node)
        if isinstance(node, ast.Await | ast.Yield | ast.YieldFrom):
            parts = [self.eval(node.value)] if node.value is not None else []
            return self._join(parts, [node.value] if node.value is not None else [], VARIES, 0, effect=True)
        if isinstance(node, ast.NamedExpr):
            reading = self.eval(node.value)
            self.bind(node.target, reading, node.value)
            return reading
        children = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        weight = 0
        if isinstance(node, ast.BinOp):
            heavy = isinstance(node.op, ast.MatMult) or _is_outer(node)
            heavy = heavy or self.run.is_whole(node.left) or self.run.is_whole(node.right)
            weight = COSTLY if heavy else self._is_array(node)
        if isinstance(node, ast.JoinedStr):
            children = [item.value for item in node.values if isinstance(item, ast.FormattedValue)]
        return self._join([self.eval(child) for child in children], children, FIXED, weight)

    def _is_array(self, node: ast.expr) -> int:
        return int(self.module.value(node).kind in ("tensor", "numpy"))

    def _join(
        self, readings: list[_Reading], nodes: list[ast.expr], level: int, weight: int, *, effect: bool = False
    ) -> _Reading:
        """Return what is computed of parts; parts that stay the same in what does not are pieces of their own."""
        level = max([level, *(reading.level for reading in readings)])
        effect = effect or any(reading.effect for reading in readings)
        if level == FIXED and not effect:
            return _Reading(FIXED, weight + sum(reading.weight for reading in readings), False)
        chunks: list[_Chunk] = []
        for reading, node in zip(readings, nodes, strict=True):
            if reading.level == FIXED and not reading.effect:
                if reading.weight:
                    chunks.append((node, reading.weight, self.function))
            else:
                chunks += reading.chunks
        return _Reading(level, weight, effect, chunks)

    def name(self, node: ast.Name) -> int:
        """Return whether a variable stays the same."""
        name = node.id
        if self.run.trains and name in self.run.facts.learned:
            return VARIES
        known = self.levels.get(name)
        if known is not None:
            return known
        if name == "self":
            return FIXED if self.own else VARIES
        function = self.function
        if function is not None and name in self.run.facts.locals(function.node):
            # bound before the loop, or not yet
            return FIXED if self.top else VARIES
        if name in self.run.mutated:
            return VARIES
        loop = self.run.loop
        if loop is not None and name in self.run.shared:
            around = loop.function
            if around is None or (function is not None and function.outer is around):
                return VARIES
        return FIXED

    def _attribute(self, node: ast.Attribute) -> _Reading:
        path = path_of(node)
        root = path.partition(".")[0]
        if root in self.module.aliases and root not in self.levels:
            return _Reading()
        base = self.eval(node.value)
        attr = node.attr
        facts = self.run.facts
        if attr in ("shape", "dtype", "device", "ndim") and base.level == FIXED:
            return _Reading()
        if attr in self.run.stored or attr == "grad" or (self.run.trains and f".{attr}" in facts.learned):
            return self._join([base], [node.value], VARIES, 0)
        owner = self.function.owner if self.function is not None else None
        if isinstance(node.value, ast.Name) and node.value.id == "self" and owner is not None:
            known = owner.attribute(attr)
            if known is not None and self.run.trains and known.kind == "tensor" and known.of == "parameter":
                return _Reading(VARIES)
            if known is None and owner.is_module and attr not in _SETTINGS and not _assigns(facts, owner, attr):
                return _Reading(VARIES)
            if not self.own and known is not None and known.kind == "host":
                return _Reading()  # layers of one kind share their settings
        elif self.run.trains and self.module.value(node.value).kind == "module":
            return _Reading(VARIES)
        return self._join([base], [node.value], FIXED, 0)

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> _Reading:
        saved, fresh = dict(self.levels), set(self.fresh)
        nodes: list[ast.expr] = []
        readings: list[_Reading] = []
        for generator in node.generators:
            over = self.eval(generator.iter)
            nodes.append(generator.iter)
            readings.append(over)
            self.bind(generator.target, _Reading(_over(self.module, generator.iter, over.level)), generator.iter)
            for test in generator.ifs:
                nodes.append(test)
                readings.append(self.eval(test))
        made = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        for item in made:
            reading = self.eval(item)
            short = isinstance(node.generators[0].iter, ast.Tuple | ast.List)
            if reading.weight and not short:
                reading.weight *= _MANY
            reading.chunks = [(part, weight * _MANY, function) for part, weight, function in reading.chunks]
            nodes.append(item)
            readings.append(reading)
        self.levels, self.fresh = saved, fresh
        nested = _counts(node) and (self.inner > 0 or len(node.generators) > 1)
        weight = COSTLY if nested or _by_element(node) else 0
        return self._join(readings, nodes, FIXED, weight)

    def _call(self, node: ast.Call) -> _Reading:
        call = self.run.facts.calls.get(node)
        func = node.func
        nodes = [*(item.value if isinstance(item, ast.Starred) else item for item in node.args)]
        nodes += [item.value for item in node.keywords]
        readings = [self.eval(item) for item in nodes]
        name = self.module.name_of(func)
        root = path_of(func).partition(".")[0]
        attr = func.attr if isinstance(func, ast.Attribute) else path_of(func)
        imported = root in self.module.aliases and root not in self.levels
        if call is not None and call.callees:
            return self._own(node, call, readings, nodes)
        if any(item.arg == "out" for item in node.keywords):
            return self._join(readings, nodes, VARIES, 0, effect=True)
        if imported or (isinstance(func, ast.Name) and not self._is_local(func.id)):
            return self._named(name, attr, imported, readings, nodes)
        if isinstance(func, ast.Attribute):
            return self._method(node, func, readings, nodes)
        if isinstance(func, ast.Name):
            readings, nodes = [self.eval(func), *readings], [func, *nodes]
            if _TOKENIZER.search(func.id):
                return self._join(readings, nodes, FIXED, COSTLY)
            if self.module.value(func).kind == "module" or (call is not None and call.receiver.kind == "module"):
                return self._modules(readings, nodes)
        return self._join(readings, nodes, VARIES, 0, effect=True)

    def _is_local(self, name: str) -> bool:
        if name in self.levels:
            return True
        return self.function is not None and name in self.run.facts.locals(self.function.node)

    def _named(self, name: str, attr: str, imported: bool, readings: list[_Reading], nodes: list[ast.expr]) -> _Reading:
        """Return what a function of a library or of Python gives."""
        if not imported:
            if name in _PURE_BUILTINS:
                return self._join(readings, nodes, FIXED, 0)
            made = self.module.classes.get(name)
            if made is not None:
                return self._join(readings, nodes, VARIES if made.is_module else FIXED, 0)
            return self._join(readings, nodes, VARIES, 0, effect=True)
        if _RANDOM.search(name.rpartition(".")[2]) and attr not in ("empty",):
            return self._join(readings, nodes, VARIES, 0, effect=True)
        if attr == "from_pretrained":
            return self._join(readings, nodes, FIXED, COSTLY)
        if _PURE_LIBRARY.match(name):
            whole = bool(nodes) and attr in REDUCTIONS and self.run.is_whole(nodes[0])
            return self._join(readings, nodes, FIXED, COSTLY if whole else _weight(name, attr))
        if attr[:1].isupper() and not re.search(r"Loader|Process|Thread|Pool|Writer|Queue|Random|Model|Net$", attr):
            opaque = name.startswith(("torch.nn.", "torch.optim."))
            return self._join(readings, nodes, VARIES if opaque else FIXED, 0)
        return self._join(readings, nodes, VARIES, 0, effect=True)

    def _method(self, node: ast.Call, func: ast.Attribute, readings: list[_Reading], nodes: list[ast.expr]) -> _Reading:
        """Return what a method of an object of a library gives."""
        attr = func.attr
        receiver = self.eval(func.value)
        readings, nodes = [receiver, *readings], [func.value, *nodes]
        kind = self.module.value(func.value).kind
        if attr in _PARTS:
            return self._join(readings, nodes, VARIES if self.run.trains else FIXED, 0)
        if kind == "module" or self.module.value(func).kind == "module":
            return self._modules(readings, nodes)
        if attr in _MUTATORS or (attr.endswith("_") and not attr.startswith("_")):
            level = max(reading.level for reading in readings[1:]) if readings[1:] else FIXED
            before, self.effect = self.effect, False
            self.change(func.value, level)
            effect, self.effect = self.effect, before
            return self._join(
                readings, nodes, VARIES if effect else FIXED, 1 if attr.endswith("_") else 0, effect=effect
            )
        # a queue's get() takes nothing
        if _RANDOM.search(attr) or (attr == "get" and not node.args):
            return self._join(readings, nodes, VARIES, 0, effect=True)
        if attr in _ESTIMATES or _TOKENIZER.search(attr) or _TOKENIZER.search(path_of(func.value)):
            return self._join(readings, nodes, FIXED, COSTLY)
        if attr in PURE_METHODS or kind in ("tensor", "numpy"):
            whole = attr in REDUCTIONS and self.run.is_whole(func.value)
            return self._join(readings, nodes, FIXED, COSTLY if whole else _weight("", attr))
        return self._join(readings, nodes, VARIES, 0, effect=True)

    def _modules(self, readings: list[_Reading], nodes: list[ast.expr]) -> _Reading:
        """Return what a module gives: its weights change where training goes on, its dropout is random."""
        frozen = not self.run.trains and (".eval()" in self.module.text or "inference_mode" in self.module.text)
        return self._join(readings, nodes, FIXED if frozen else VARIES, COSTLY)

    def _own(self, node: ast.Call, call: SourceCall, readings: list[_Reading], nodes: list[ast.expr]) -> _Reading:
        """Return what a function of the file gives for what it is given here."""
        func = node.func
        receiver: _Reading | None = None
        owned = FIXED
        if isinstance(func, ast.Attribute) and path_of(func).partition(".")[0] not in self.module.aliases:
            receiver = self.eval(func.value)
            owned = receiver.level
            readings, nodes = [receiver, *readings], [func.value, *nodes]
        elif isinstance(func, ast.Name) and func.id in self.levels:
            owned = self.levels[func.id]
        own = owned == FIXED or self._is_member(func)
        if len(call.callees) > 4:
            return self._join(readings, nodes, VARIES, 0, effect=True)
        level, weight, effect = owned, 0, False
        chunks: list[_Chunk] = []
        for callee in call.callees:
            given, places = self._given(node, callee)
            done = self.run._visit(callee, given, own=own or callee.name == "__init__")
            if callee.owner is not None and callee.owner.is_module:
                # whoever builds one draws its weights; whoever runs one may drop parts at random
                made = callee.name == "__init__"
                level = VARIES if made or (self.run.trains and callee.name == "forward") else level
            level = max(level, done.level)
            weight += done.weight
            effect = effect or done.effect
            chunks += done.chunks
            for name in done.mutates & places.keys():
                self.change(places[name], VARIES)
        if call.callees[0].name == "__init__":
            level = max([level, *(reading.level for reading in readings)])
        result = self._join(readings, nodes, level, weight, effect=effect)
        if result.level != FIXED or result.effect:
            result.chunks = result.chunks + chunks
            if level == FIXED and not effect:
                result.level = FIXED
                result.effect = any(reading.effect for reading in readings)
        return result

    def _is_member(self, func: ast.expr) -> bool:
        """Return whether a method's object is one of several that outlive the turn, and is asked again later."""
        if not isinstance(func, ast.Attribute) or not isinstance(func.value, ast.Subscript):
            return False
        held = func.value
        loop = self.run.loop
        own_targets = loop.targets if loop is not None and self.top else frozenset()
        return self.eval(held.value).level == FIXED and not (names_in(held.slice) & own_targets)

    def _given(self, node: ast.Call, callee: SourceFunction) -> tuple[frozenset[str], dict[str, ast.expr]]:
        """Return which parameters get what varies, and what each is given."""
        args = callee.node.args
        places = [arg.arg for arg in (*args.posonlyargs, *args.args)]
        if callee.owner is not None and "staticmethod" not in callee.decorators:
            places = places[1:]
        given: dict[str, ast.expr] = {}
        for index, item in enumerate(node.args):
            if isinstance(item, ast.Starred) or index >= len(places):
                return frozenset(_parameters(callee.node)) - {"self"}, given
            given[places[index]] = item
        for named in node.keywords:
            if named.arg is None:
                return frozenset(_parameters(callee.node)) - {"self"}, given
            given[named.arg] = named.value
        return frozenset(name for name, item in given.items() if self.eval(item).level != FIXED), given


def _adds(node: ast.expr) -> bool:
    """Return whether an expression puts something into a list: ``rows.append(row)``."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("append", "extend", "add")
        and bool(node.args)
    )


def _weight(name: str, attr: str) -> int:
    if name.startswith("math."):
        return 0
    if attr in _HEAVY:
        return COSTLY
    if attr in _CHEAP:
        return 0
    return 2 if attr in _CURVES else 1


def _is_outer(node: ast.BinOp) -> bool:
    """Return whether each element of one side meets each of the other: ``x[:, None] - y[None]``."""

    def widened(side: ast.expr) -> bool:
        if isinstance(side, ast.Call):
            return isinstance(side.func, ast.Attribute) and side.func.attr == "unsqueeze"
        parts = side.slice.elts if isinstance(side, ast.Subscript) and isinstance(side.slice, ast.Tuple) else []
        parts = [side.slice] if isinstance(side, ast.Subscript) and not parts else parts
        return any(literal(part) is None for part in parts)

    return widened(node.left) and widened(node.right)


def _over(module: Module, node: ast.expr, level: int) -> int:
    """Return whether what a loop in a turn goes over gives the same elements in the same order."""
    return VARIES if module.value(node).kind in ("loader", "params") else level


def _is_short(node: ast.For | ast.AsyncFor | ast.While) -> bool:
    if isinstance(node, ast.While):
        return False
    return isinstance(node.iter, ast.Tuple | ast.List) and len(node.iter.elts) <= 8


def _by_element(node: ast.AST) -> bool:
    """Return whether a loop takes an array's elements one by one: ``x[i]`` for ``i`` in ``range(len(x))``."""
    pairs: list[tuple[ast.expr, ast.expr]] = []
    if isinstance(node, ast.For | ast.AsyncFor):
        pairs = [(node.target, node.iter)]
    elif isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
        pairs = [(generator.target, generator.iter) for generator in node.generators]
    for target, over in pairs:
        if not (isinstance(target, ast.Name) and isinstance(over, ast.Call) and path_of(over.func) == "range"):
            continue
        if all(isinstance(literal(item), int) for item in over.args):
            continue
        if any(isinstance(part, ast.Subscript) and target.id in names_in(part.slice) for part in ast.walk(node)):
            return True
    return False


def _counts(node: ast.AST) -> bool:
    """Return whether a loop's length is not written down as a small number."""
    over = node.iter if isinstance(node, ast.For | ast.AsyncFor) else None
    if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
        over = node.generators[-1].iter
    if isinstance(over, ast.Call) and path_of(over.func) == "range":
        return not all(isinstance(literal(item), int) for item in over.args)
    return not isinstance(over, ast.Tuple | ast.List | ast.Constant)


def _looks_up(node: ast.If) -> bool:
    """Return whether a way out gives what has been computed before: ``if key in cache: return cache[key]``."""
    return any(
        isinstance(part, ast.Compare)
        and any(isinstance(op, ast.In | ast.NotIn | ast.Is | ast.IsNot) for op in part.ops)
        for part in ast.walk(node.test)
    )


def _assigns(facts: _Facts, owner: object, attr: str) -> bool:
    family = [owner, *getattr(owner, "parents", ())]
    return any(attr in facts.stores(known.node) for known in family)


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    args = node.args
    found = {arg.arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs)}
    return found | {arg.arg for arg in (args.vararg, args.kwarg) if arg is not None}


def _bound(node: ast.AST) -> set[str]:
    """Return the names that a piece of syntax binds, those in comprehensions left out."""
    found: set[str] = set()
    pending = [node]
    while pending:
        part = pending.pop()
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store | ast.Del):
            found.add(part.id)
        for child in ast.iter_child_nodes(part):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(child.name)
            elif not isinstance(child, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp | ast.Lambda):
                pending.append(child)
    return found


def _stored_attributes(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        target: ast.AST | None = None
        if isinstance(part, ast.Attribute | ast.Subscript):
            target = part if not isinstance(part.ctx, ast.Load) else None
        elif isinstance(part, ast.Call):
            func = part.func
            last = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
            if isinstance(func, ast.Attribute) and (last in _MUTATORS or (last[-1:] == "_" and last[0] != "_")):
                target = func.value
            elif last in ("register_buffer", "setattr"):
                yield from (said for item in part.args if isinstance(said := literal(item), str))
        while isinstance(target, ast.Attribute | ast.Subscript):
            if isinstance(target, ast.Attribute):
                yield target.attr
            target = target.value


def _learned(module: Module) -> frozenset[str]:
    """Return the names and attributes that training changes: parameters, what an optimizer is given."""
    found: set[str] = set()
    for call in module.calls:
        if call.attr in ("Parameter", "requires_grad_") or literal(keyword(call.node, "requires_grad")) is True:
            outer: SourceCall | None = call
            while outer is not None:
                found.add(_dotted(outer.target))
                outer = outer.user
        if call.attr == "requires_grad_" and call.owner is not None:
            found.add(_dotted(path_of(call.owner)))
        if call.value.kind == "optimizer" or call.name.startswith("torch.optim."):
            for argument in call.node.args[:1]:
                found |= {f".{part.attr}" for part in ast.walk(argument) if isinstance(part, ast.Attribute)}
                found |= names_in(argument)
    return frozenset(found - {"self", "", ".parameters"} - set(module.aliases))


def _dotted(path: str) -> str:
    """Return a variable's name as it is, an attribute's with its dot."""
    root, dot, last = path.rpartition(".")
    return dot + last if root else last

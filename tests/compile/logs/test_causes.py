"""Graph breaks and recompilation reasons, as the versions of PyTorch word them."""

from __future__ import annotations

import time

import pytest
from compile.logs.corpus_tables import FIXES
from compile.logs.log_builder import break_text

from torchtriage.compile.logs import fixes
from torchtriage.compile.logs.breaks import Break, parse_break, parse_restart
from torchtriage.compile.logs.fixes import completed, fix_of, recompile_fix
from torchtriage.compile.logs.graphs import count_ops, kernels_of, nodes_of
from torchtriage.compile.logs.guards import parse_guards
from torchtriage.compile.logs.recompiles import parse_failure


def test_a_break_of_today_is_taken_apart() -> None:
    one = parse_break(break_text("Data-dependent branching", 12))
    assert one is not None
    assert (one.id, one.type, one.context) == ("GB0170", "Data-dependent branching", "jump")
    assert (one.explanation, one.hints) == ("It cannot be traced.", ("Do it otherwise.",))
    assert one.frame == one.caller
    assert one.frame is not None
    assert (one.frame.file, one.frame.line, one.frame.function) == ("me/train.py", 12, "step")
    assert [frame.line for frame in one.stack] == [12, 1778, 3]
    assert "torch.where" in fix_of(one).code


def test_what_was_being_traced_is_no_part_of_the_type() -> None:
    text = break_text("x", 3).replace(
        "Reason: x\n", "Reason: Encountered graph break when attempting to trace CALL: f(x):\n\nBad\n"
    )
    one = parse_break(text)
    assert one is not None
    assert (one.type, one.trying) == ("Bad", "CALL: f(x)")


def test_a_break_inside_a_library_knows_the_users_line() -> None:
    text = break_text("x", 12).replace('"me/train.py", line 12', '"/v/lib/python3.11/logging/a.py", line 9')
    one = parse_break(text.replace("at me/train.py:12", "at /v/lib/python3.11/logging/a.py:9"))
    assert one is not None
    assert one.frame is not None
    assert one.caller is not None
    assert one.frame.line == 9
    assert (one.caller.file, one.caller.line) == ("me/main.py", 3)


def fix_text(kind: str, explanation: str = "It cannot.", context: str = "x") -> str:
    one = Break("", kind, explanation, ("Do otherwise.",), context, "", None, (), None)
    return fix_of(one).text


@pytest.mark.parametrize(("text", "kind"), [(text, kind) for text, kinds in FIXES.items() for kind in kinds])
def test_a_type_of_break_has_its_fix(text: str, kind: str) -> None:
    assert fix_text(kind) == text


@pytest.mark.parametrize(
    ("kind", "context"),
    [
        ("Attempted to represent unregistered RemovableHandle", "Registry entry, raised by retry"),
        ("Unsupported function call", "call_function raise_it try_entry mutator generator"),
        ("Unsupported inspect call", "the logger of an asynchronous unique exception"),
    ],
)
def test_words_inside_of_words_give_no_fix(kind: str, context: str) -> None:
    assert fix_text(kind, context, context).startswith("Move this line out")


@pytest.mark.torch
def test_every_type_that_the_installed_torch_knows_has_the_fix_that_was_chosen() -> None:
    chosen = {kind: text for text, kinds in FIXES.items() for kind in kinds}
    known = fixes._registry()
    assert len(known) > 200
    wrong = {
        kind: fix_text(kind, explanation)
        for kind, (_, explanation, _) in known.items()
        if kind not in chosen and not fix_text(kind, explanation).startswith("Move this line")
    }
    assert wrong == {}


VERSION_25 = """Graph break in user code at a.py:5
Reason: Unsupported: builtin: print [<class 'x'>] False
User code traceback:
  File "a.py", line 5, in f
    print(x)
"""
SUPPRESSED = """Graph break (details suppressed) in user code at a.py:5
Reason: generic_jump TensorVariable()"""
UNRESUMED = """Graph break: torch.compile cannot properly resume from this graph break, which
torch.compile will skip tracing the frame f (a.py line 1) and fall back to eager.
The graph break occurred in the following user code:
  File "a.py", line 5, in f
    x
"""


@pytest.mark.parametrize(
    ("text", "kind", "gb"),
    [
        (VERSION_25, "Failed to trace builtin operator", "GB0059"),
        (SUPPRESSED, "Data-dependent branching", "GB0170"),
        (UNRESUMED, "Cannot resume after a graph break", ""),
    ],
)
def test_breaks_of_other_versions(text: str, kind: str, gb: str) -> None:
    one = parse_break(text)
    assert one is not None
    assert one.type == kind
    assert completed(one).id == gb
    assert one.frame is not None
    assert one.frame.line == 5


def test_no_break_is_no_break() -> None:
    assert parse_break("") is None
    assert parse_break("something else") is None


def test_a_restart_of_old_names_no_line() -> None:
    one = parse_restart("'skip function graph_break in file /x/torch/_dynamo/decorators.py'")
    assert (one.type, one.frame) == ("Call to `torch._dynamo.graph_break()`", None)


@pytest.mark.parametrize(
    ("text", "cause", "source", "dim", "was", "now"),
    [
        ("0/0: tensor 'x' size mismatch at index 1. expected 4, actual 5", "size", "x", 1, "4", "5"),
        ("0/0: tensor 'L['x']' stride mismatch at index 0. expected 4, actual 1", "stride", "x", 0, "4", "1"),
        ("3/1: tensor 'x' dtype mismatch. expected Float, actual Double", "dtype", "x", -1, "Float", "Double"),
        ("0/0: tensor 'x' rank mismatch. expected 2, actual 3", "rank", "x", -1, "2", "3"),
        ("0/0: tensor 'x' requires_grad mismatch. expected requires_grad=1", "requires grad", "x", -1, "True", "False"),
        ("0/0: L['k'] == 3                # y = x * k  # me/train.py:9 in step", "number", "k", -1, "3", ""),
        ("0/0: self.flag == True", "flag", "self.flag", -1, "True", "False"),
        ("0/0: L['self'].training == True", "training mode", "self.training", -1, "True", "False"),
        ("0/0: mode == 'a'", "text", "mode", -1, "'a'", ""),
        ("0/0: ___check_obj_id(L['fn'], 9421856)", "object", "fn", -1, "", ""),
        ("0/0: len(L['xs']) == 3", "length", "xs", -1, "3", ""),
        ("0/0: GLOBAL_STATE changed: grad_mode ", "global state", "grad_mode", -1, "", ""),
        ("0/0: 2 <= L['x'].size()[0]", "shape guard", "2 <= x.size()[0]", -1, "", ""),
        ("0/0: Eq(L['x'].size()[0], 4)", "shape guard", "Eq(x.size()[0], 4)", -1, "", ""),
        ("0/0: ___check_type_id(L['x'], 123)", "type", "x", -1, "", ""),
        ("0/0: BACKEND_MATCH failure: torch.compile detected", "backend", "", -1, "", ""),
        ("1/0: ___stack0 == -4.0", "number", "___stack0", -1, "-4.0", ""),
        ("1/0: ___stack1 is None", "none", "___stack1", -1, "None", ""),
        ("0/0: ___dict_contains('a', L['d']) == True", "keys", "", -1, "", ""),
        ("0/0: something new", "other", "", -1, "", ""),
    ],
)
def test_reasons_are_classed(text: str, cause: str, source: str, dim: int, was: str, now: str) -> None:
    one = parse_failure(text)
    assert (one.cause, one.source, one.dim, one.was, one.now) == (cause, source, dim, was, now)
    assert one.graph == text.partition(":")[0]


def test_a_guard_names_its_line_and_hint() -> None:
    one = parse_failure("2/1: self.n == 1      # self.n += 1  # me/a.py:11 in f (HINT: make it a tensor)")
    assert (one.guard, one.code, one.hint) == ("self.n == 1", "self.n += 1", "make it a tensor")
    assert one.frame is not None
    assert (one.frame.file, one.frame.line) == ("me/a.py", 11)


def test_cures_follow_the_cause() -> None:
    often = recompile_fix("size", "x", 0, 5, automatic=False, guard="")
    assert (often.mark_dynamic, often.bucketing, often.dynamic) == ("yes", "yes", "yes")
    once = recompile_fix("size", "x", 1, 1, automatic=True, guard="")
    assert (once.mark_dynamic, once.bucketing) == ("once", "no")
    assert once.code.startswith("torch._dynamo.mark_dynamic(x, 1)")
    for guard, source, dim, code in (
        ("tensor 'x' size mismatch at index 2. expected 1, actual 5", "x", 2, "(x, 2)"),
        ("tensor 'y' size mismatch at index 0. expected 7, actual 0", "y", 0, "(y, 0)"),
        ("2 <= L['z'].size()[1]", "2 <= z.size()[1]", -1, "(L['z'], 1)"),
    ):
        # marking a size of 1 as dynamic is an error
        cause = "size" if "mismatch" in guard else "shape guard"
        cure = recompile_fix(cause, source, dim, 1, automatic=True, guard=guard)  # type: ignore[arg-type]
        assert (cure.mark_dynamic, cure.dynamic, cure.bucketing) == ("no", "no", "yes")
        assert cure.code.startswith(f"torch._dynamo.decorators.mark_unbacked{code}")
        assert "normal" in cure.text
    twice = 'Duplicate tensors found: ["x", "d[\'a\']"]'
    told = recompile_fix("aliasing", "", -1, 1, automatic=True, guard=twice)
    assert told.code == "d['a'] = d['a'].clone()"
    of_global = recompile_fix("number", "G['N']", -1, 1, automatic=True, guard="G['N'] == 2")
    assert of_global.code.startswith("N = torch.tensor(N)")
    assert of_global.dynamic == "no"
    for cause in ("dtype", "object", "text", "training mode", "other"):
        cure = recompile_fix(cause, "x", -1, 3, automatic=True, guard="")  # type: ignore[arg-type]
        assert (cure.mark_dynamic, cure.bucketing, cure.dynamic) == ("no", "no", "no")


GRAPH = """class GraphModule(torch.nn.Module):
    def forward(self, L_w_: "f32[3][1]cpu", L_x_: "f32[4, 3][3, 1]cpu"):
        l_x_ = L_x_

        # File: me/a.py:7 in forward, code: h = torch.relu(x @ w)
        matmul: "f32[4][1]cpu" = l_x_ @ L_w_;  l_x_ = L_w_ = None
        h: "f32[4][1]cpu" = torch.relu(matmul);  matmul = None
        view: "f32[2, 2]cpu" = h.view(2, 2)
        add = torch.ops.aten.add.Tensor(h, 1);  h = None
        return (add, view)
"""


def test_a_printed_graph_is_read() -> None:
    assert count_ops(GRAPH) == {"@": 1, "relu": 1, "view": 1, "add": 1}
    nodes = nodes_of(GRAPH)
    assert [(node.name, node.op, node.uses) for node in nodes] == [
        ("L_w_", "input", ()),
        ("L_x_", "input", ()),
        ("matmul", "@", ("L_x_", "L_w_")),
        ("h", "relu", ("matmul",)),
        ("view", "view", ("h",)),
        ("add", "add", ("h",)),
        ("output", "output", ("add", "view")),
    ]
    assert nodes[3].place == "me/a.py:7"
    assert nodes[3].type == "f32[4][1]cpu"


def test_kernels_are_counted_with_what_is_in_them() -> None:
    kernels = kernels_of(
        "# Topologically Sorted Source Nodes: [h], Original ATen: [aten.add, aten.relu]\n"
        "triton_poi_fused_add_0 = async_compile.triton('triton_poi_fused_add_0', '''\n''')\n"
        "cpp_fused_1 = async_compile.cpp_pybinding(['float*'], '''\n''')\n"
        "def call(args):\n    extern_kernels.mm(a, b, out=c)\n"
        "    buf1 = torch.ops.aten.sort.stable(c)\n"
    )
    assert kernels.generated == (("triton_poi_fused_add_0", "triton", 2), ("cpp_fused_1", "cpp_pybinding", 0))
    assert kernels.library == ("mm",)
    assert kernels.fallback == ("aten.sort.stable",)


def test_guards_are_counted() -> None:
    tree = parse_guards(
        "\nTREE_GUARD_MANAGER:\n+- RootGuardManager\n"
        "| +- LAMBDA_GUARD: f() == None  # _dynamo/output_graph.py:1 in init\n"
        "| +- GuardManager: source=L['x'], accessed_by=A\n"
        "| | +- TENSOR_MATCH: check_tensor(L['x'], T)  # y = x  # me/a.py:7 in f\n"
        "Guard latency = 94.50 us"
    )
    assert tree.kinds == {"LAMBDA_GUARD": 1, "TENSOR_MATCH": 1}
    assert tree.latency_us == 94.5
    assert tree.sources == {"x": 1}
    assert tree.places["me/a.py:7 f"] == 1


def test_no_reason_takes_long_to_read() -> None:
    begun = time.process_time()
    failure = parse_failure("0/0: a" + " " * 2000 + "# " + " " * 2000 + "x")
    assert failure.frame is None
    assert parse_break("Graph break" + " in user code at a" * 4000) is not None
    assert parse_break("Graph break: " + "TensorVariable() " * 20_000) is not None
    assert time.process_time() - begun < 1

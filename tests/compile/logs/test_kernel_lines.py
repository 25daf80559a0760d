"""The lines of Inductor's kernels, out of the comments in its code and the graphs that they name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from compile.logs.log_builder import LogBuilder

from torchtriage.compile.logs.graphs import nodes_of
from torchtriage.compile.logs.kernel_lines import GraphCode, read_graph_codes
from torchtriage.core.errors import LogError

RECORDED = Path(__file__).parent / "data" / "kernel_lines.log"
"""Three compiled functions on the CPU, logged by torch 2.13 with INDUCTOR_PROVENANCE=1; kernel bodies are left out."""
STACKS = "inductor_provenance_tracking_kernel_stack_traces"

DYNAMO = """class GraphModule(torch.nn.Module):
    def forward(self, L_x_: "f32[8, 8]", L_w_: "f32[8, 8]"):
        # File: /me/net.py:10 in forward, code: x = self.a(x)
        linear: "f32[8, 8]" = torch._C._nn.linear(l_x_, l_w_)
        # File: /me/net.py:11 in forward, code: x = torch.relu(x.view(-1))
        view: "f32[64]" = linear.view(-1)
        x: "f32[64]" = torch.relu(view)
        # File: /me/net.py:12 in forward, code: x = self.b(x)
        linear_1: "f32[8, 8]" = torch._C._nn.linear(x, l_w_)
        # File: /me/net.py:13 in forward, code: return torch.relu(x)
        out: "f32[8, 8]" = torch.relu(linear_1)
        # File: /lib/python3.12/site-packages/helpers/ops.py:3 in gate, code: return x * x
        mul: "f32[8, 8]" = out * out
"""
FORWARD = """class <lambda>(torch.nn.Module):
    def forward(self, primals_1: "f32[8, 8]"):
        # File: /me/net.py:10 in forward, code: x = self.a(x)
        mm: "f32[8, 8]" = torch.ops.aten.mm.default(primals_1, primals_2)
        _unsafe_view: "f32[8, 8]" = torch.ops.aten._unsafe_view.default(mm, [8, 8])
        # File: /me/net.py:11 in forward, code: x = torch.relu(x.view(-1))
        view: "f32[64]" = torch.ops.aten.view.default(_unsafe_view, [-1])
        relu: "f32[64]" = torch.ops.aten.relu.default(view)
        # File: /me/net.py:12 in forward, code: x = self.b(x)
        mm_1: "f32[8, 8]" = torch.ops.aten.mm.default(relu, primals_2)
        _unsafe_view_1: "f32[8, 8]" = torch.ops.aten._unsafe_view.default(mm_1, [8, 8])
        # File: /me/net.py:13 in forward, code: return torch.relu(x)
        relu_1: "f32[8, 8]" = torch.ops.aten.relu.default(_unsafe_view_1)
        # File: /lib/python3.12/site-packages/helpers/ops.py:3 in gate, code: return x * x
        mul: "f32[8, 8]" = torch.ops.aten.mul.Tensor(relu_1, relu_1)
        # No stacktrace found for following nodes
        add_tensor: "f32[8, 8]" = torch.ops.aten.add.Tensor(mul, 1)
"""
FORWARD_CODE = """# kernel path: /tmp/inductor/ct6.py
# Topologically Sorted Source Nodes: [linear, view, x], Original ATen: [aten._unsafe_view, aten.view, aten.relu]
# Source node to ATen node mapping:
#   linear => _unsafe_view
#   view => view
#   x => relu
# Graph fragment:
#   %relu : Tensor "f32[64]" = call_function[target=torch.ops.aten.relu.default](args = (%view,), kwargs = {})
triton_poi_fused_relu_0 = async_compile.triton('triton_poi_fused_relu_0', '''
def triton_poi_fused_relu_0(in_out_ptr0, xnumel, XBLOCK : tl.constexpr):
    tmp4 = triton_helpers.maximum(tmp3, tmp2)
''', device_str='cuda')

# Topologically Sorted Source Nodes: [mul, ], Original ATen: [aten.mul, aten.add]
# Source node to ATen node mapping:
#    => add_tensor
#   mul => mul
triton_poi_fused_add_mul_1 = async_compile.triton('triton_poi_fused_add_mul_1', ''' ''', device_str='cuda')

    def call(self, args):
            # Topologically Sorted Source Nodes: [linear], Original ATen: [aten.mm]
            extern_kernels.mm(primals_1, primals_2, out=buf0)
            # Topologically Sorted Source Nodes: [linear, view, x], Original ATen: [aten.relu]
            stream0 = get_raw_stream(0)
            triton_poi_fused_relu_0.run(buf0, 64, stream=stream0)
            # Topologically Sorted Source Nodes: [x, linear_1], Original ATen: [aten.mm]
            extern_kernels.mm(buf0, primals_2, out=buf1)
            # Topologically Sorted Source Nodes: [linear_1, linear_1, out], Original ATen: [aten.relu]
            triton_poi_fused_relu_0.run(buf1, 64, stream=stream0)
            # Topologically Sorted Source Nodes: [mul, ], Original ATen: [aten.mul, aten.add]
            # [Provenance debug handles] triton_poi_fused_add_mul_1:5
            triton_poi_fused_add_mul_1.run(buf1, 64, stream=stream0)
"""
BACKWARD = """class GraphModule(torch.nn.Module):
    def forward(self, relu: "f32[8, 8]", tangents_1: "f32[8, 8]"):
        # File: /me/net.py:11 in forward, code: x = torch.relu(x.view(-1))
        full_default: "f32[]" = torch.ops.aten.full.default([], 0.0)
        # File: /me/net.py:13 in forward, code: return torch.relu(x)
        le: "b8[8, 8]" = torch.ops.aten.le.Scalar(relu, 0)
        where: "f32[8, 8]" = torch.ops.aten.where.self(le, full_default, tangents_1)
        # File: /me/net.py:12 in forward, code: x = self.b(x)
        x: "f32[8, 8]" = torch.ops.aten.mul.Tensor(where, 2)
        mm_2: "f32[8, 8]" = torch.ops.aten.mm.default(x, primals_2)
"""
BACKWARD_CODE = """# Topologically Sorted Source Nodes: [le, scalar_tensor, where], Original ATen: [aten.where]
# Source node to ATen node mapping:
#   le => le
#   scalar_tensor => full_default
#   where => where
triton_poi_fused_threshold_backward_0 = async_compile.triton('triton_poi_fused_threshold_backward_0', ''' ''')

    def call(self, args):
            # Topologically Sorted Source Nodes: [le, scalar_tensor, where], Original ATen: [aten.where]
            triton_poi_fused_threshold_backward_0.run(buf1, 64, stream=stream0)
            # Topologically Sorted Source Nodes: [x], Original ATen: [aten.mul]
            buf2 = torch.ops.aten.mul.Tensor(buf1, 2)
            # Topologically Sorted Source Nodes: [x, mm_2], Original ATen: [aten.mm]
            extern_kernels.mm(buf1, primals_2, out=buf3)
"""


def log(*graphs: tuple[str, str, str], dynamo: str = DYNAMO) -> LogBuilder:
    """Return the log of one compilation: of each graph its text, its code and its key."""
    found = LogBuilder().record("dynamo_output_graph", {}, dynamo, "0/0")
    for text, code, key in graphs:
        found.artifact("inductor_post_grad_graph", text)
        found.record("inductor_output_code", {"filename": "/tmp/c.py"}, code, "0/0")
        found.artifact("fx_graph_cache_miss", json.dumps({"key": key}))
    return found


def read(found: LogBuilder, folder: Path) -> list[GraphCode]:
    return read_graph_codes(str(found.write(folder / "log.log")))


def lines(code: GraphCode) -> list[tuple[str, list[int]]]:
    return [(call.name, [line.line for line in call.lines]) for call in code.calls]


def test_each_call_of_one_kernel_has_its_own_line() -> None:
    first, second, both = read_graph_codes(str(RECORDED))
    assert lines(first) == [("cpp_fused_add_sin_0", [7, 8])]
    assert lines(second) == [("cpp_fused_add_clone_sin_slice_0", [13, 14])]
    assert lines(both) == [(name, [line]) for line in (19, 20, 21) for name in ("aten::mm", "cpp_fused_relu_0")]
    (line,) = both.calls[0].lines
    assert (line.file, line.function, line.exact) == ("/me/twins.py", "both", True)
    assert first.key == "favoae5j6xy6c4weglgaoop4rbaxc4sjrbxddox22wkdkaj6mxbi"


def test_comments_alone_tell_the_lines_of_what_is_computed(tmp_path: Path) -> None:
    (code,) = read(log((FORWARD, FORWARD_CODE, "fabc")), tmp_path)
    assert code.key == "fabc"
    assert lines(code) == [
        ("aten::mm", [10]),
        ("triton_poi_fused_relu_0", [11]),  # of line 10 it has a view
        ("aten::mm", [12]),
        ("triton_poi_fused_relu_0", [13]),
        ("triton_poi_fused_add_mul_1", []),  # a library's line, and a node of none
    ]


def test_a_backward_graph_has_forward_lines_and_no_line_for_a_name_that_the_forward_has_too(tmp_path: Path) -> None:
    _, code = read(log((FORWARD, FORWARD_CODE, "fa"), (BACKWARD, BACKWARD_CODE, "fb")), tmp_path)
    assert lines(code) == [("triton_poi_fused_threshold_backward_0", [13]), ("aten::mul", []), ("aten::mm", [12])]


def test_stacks_name_the_user_line_that_calls_a_library(tmp_path: Path) -> None:
    stack = (
        '  File "/me/net.py", line 13, in forward\n    return gate(torch.relu(x))\n'
        '  File "/lib/python3.12/site-packages/helpers/ops.py", line 3, in gate\n    return x * x\n'
    )
    stacks = json.dumps({"triton_poi_fused_add_mul_1:5": [stack]})
    found = log((FORWARD, FORWARD_CODE, "fabc")).artifact(STACKS, stacks)
    (code,) = read(found, tmp_path)
    assert lines(code)[-1] == ("triton_poi_fused_add_mul_1", [13])
    found.artifact(STACKS, '{"triton_poi_fused_add_mul_1:5": 7}')  # nonsense takes nothing away
    assert lines(read(found, tmp_path)[0])[-1] == ("triton_poi_fused_add_mul_1", [13])


def test_a_graph_out_of_a_cache_has_the_lines_of_today_or_none(tmp_path: Path) -> None:
    moved = DYNAMO
    for line in (13, 12, 11, 10):
        moved = moved.replace(f"net.py:{line} ", f"net.py:{line + 3} ")
    stacks = json.dumps({"triton_poi_fused_add_mul_1:5": ['  File "/me/net.py", line 20, in forward\n    gate(x)\n']})
    (code,) = read(log((FORWARD, FORWARD_CODE, "fabc"), dynamo=moved).artifact(STACKS, stacks), tmp_path)
    assert [line for _, line in lines(code)] == [[13], [14], [15], [16], []]  # where line 20 is today nobody knows
    for other in (moved.replace("in forward", "in score"), moved.replace("self.b(x)", "self.c(x)"), ""):
        (code,) = read(log((FORWARD, FORWARD_CODE, "fabc"), dynamo=other), tmp_path)
        assert [line for _, line in lines(code)] == [[]] * 5


def test_of_a_name_in_two_graphs_at_once_nothing_is_known(tmp_path: Path) -> None:
    inner = FORWARD + FORWARD.replace("net.py:10", "net.py:12").replace("self.a(x)", "self.b(x)")
    (code,) = read(log((inner, FORWARD_CODE.replace("[linear]", "[mm]"), "fabc")), tmp_path)
    assert lines(code)[0] == ("aten::mm", [])


def test_a_log_without_code_is_refused_and_a_folder_has_that_of_each_rank(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="expected a log with Inductor's output code, found none"):
        read(LogBuilder().record("dynamo_output_graph", {}, DYNAMO, "0/0"), tmp_path)
    folder = tmp_path / "logs"
    folder.mkdir()
    for rank in (0, 1):
        text = FORWARD_CODE if rank else BACKWARD_CODE
        log((FORWARD, text, f"f{rank}")).write(folder / f"dedicated_log_torch_trace_rank_{rank}_x.log")
    assert [code.key for code in read_graph_codes(str(folder), 1)] == ["f1"]
    assert [code.key for code in read_graph_codes(str(folder), 7)] == ["f0", "f1"]


def test_nodes_after_those_with_a_line_can_have_none() -> None:
    assert [node.place for node in nodes_of(FORWARD) if node.name in ("mul", "add_tensor")] == [
        "/lib/python3.12/site-packages/helpers/ops.py:3",
        "",
    ]

"""Call sites and their order: what a sequence of calls says about lines."""

from __future__ import annotations

import textwrap

import pytest

from torchtriage.core.source.align import Alignment, Called, align
from torchtriage.core.source.call_sites import flow_of
from torchtriage.core.source.files import parse


def lines_of(body: str, word: list[str], *, name: str = "f", **given: object) -> list[tuple]:
    """Align calls with the function in ``body``, whose first line is 1."""
    source = parse(textwrap.dedent(body).lstrip().encode())
    assert source.tree is not None, source.reason
    function = next(one for one in source.functions if one.name == name)
    calls = [letter(text) for text in word]
    found = align(flow_of(function, source.tree), calls, **given)  # type: ignore[arg-type]
    assert isinstance(found, Alignment)
    return [found.lines(index) for index in range(len(word))]


def letter(text: str) -> Called:
    kind, _, name = text.rpartition(":")
    return Called(kind or "builtin", name, "m.py" if kind == "python" else "")  # type: ignore[arg-type]


LOOP = """
    def f(xs):
        for x in xs:
            a = x.item()
            b = x + 1
            c = b.item()
        return x.sum()
"""


def test_calls_of_one_name_are_told_apart_by_their_order() -> None:
    assert lines_of(LOOP, ["item", "op:add", "item"] * 3 + ["sum"]) == [(3,), (4,), (5,)] * 3 + [(6,)]


def test_what_is_missing_in_the_middle_leaves_candidates() -> None:
    # operators on numbers leave nothing: their absence proves nothing
    assert lines_of(LOOP, ["item", "item", "sum"]) == [(3,), (5,), (6,)]
    assert lines_of(LOOP, ["item"], cut_start=True, cut_end=True) == [(3, 5)]


def test_calls_that_fit_no_run_are_told_by_name_alone() -> None:
    source = parse(textwrap.dedent(LOOP).lstrip().encode())
    assert source.tree is not None
    flow = flow_of(source.functions[1], source.tree)
    # sum is the last thing this function does
    found = align(flow, [Called("builtin", "sum"), Called("builtin", "item")])
    assert not found.ordered
    assert found.lines(1) == (3, 5)


def test_a_frame_that_was_open_goes_on_where_it_stood() -> None:
    body = """
        def f(loader, prof):
            for x in loader:
                a = x.item()
                prof.step()
                b = x.item()
    """
    word = ["item", "item", "python:step", "item"]
    assert lines_of(body, word, resumed_line=4) == [(5,), (3,), (4,), (5,)]


def test_branches_leave_both_lines() -> None:
    body = """
        def f(x, c):
            if c:
                return x.item()
            return x.item()
    """
    assert lines_of(body, ["item"]) == [(3, 4)]


def test_a_branch_is_known_by_what_else_it_calls() -> None:
    body = """
        def f(x, c):
            if c:
                x.exp()
                x.item()
            else:
                x.log()
                x.item()
    """
    assert lines_of(body, ["exp", "item"]) == [(3,), (4,)]
    assert lines_of(body, ["log", "item"]) == [(6,), (7,)]


def test_a_method_in_a_chain_stands_on_its_own_line() -> None:
    body = """
        def f(x):
            return (x
                    .sum()
                    .item())
    """
    assert lines_of(body, ["sum", "item"]) == [(3,), (4,)]


def test_an_inlined_comprehension_is_part_of_the_function() -> None:
    body = """
        def f(xs):
            a = [
                x.item()
                for x in xs
            ]
            return xs[0].item()
    """
    assert lines_of(body, ["item", "item", "item"]) == [(3,), (3,), (6,)]  # 3.12 and newer
    assert lines_of(body, ["python:<listcomp>", "item"]) == [(2,), (6,)]


def test_an_exception_leads_to_its_handler_and_to_finally() -> None:
    body = """
        def f(x):
            try:
                x.item()
                x.exp()
            except ValueError:
                x.item()
            finally:
                x.item()
    """
    assert lines_of(body, ["item", "item", "item"]) == [(3,), (6,), (8,)]
    assert lines_of(body, ["item", "exp", "item"]) == [(3,), (4,), (8,)]


def test_a_name_that_stands_for_a_method_is_followed() -> None:
    body = """
        def f(xs):
            put = xs.append
            put(1)
            xs.append(2)
    """
    assert lines_of(body, ["append", "append"]) == [(3,), (4,)]


def test_a_parameter_may_be_any_function() -> None:
    body = """
        def f(x, act):
            act(x)
            torch.relu(x)
    """
    assert lines_of(body, ["relu", "relu"]) == [(2,), (3,)]


def test_two_methods_of_one_name_may_show_differently() -> None:
    body = """
        def f(xs, optimizer, profiler):
            for x in xs:
                x.item()
                optimizer.step()
                x.item()
                profiler.step()
    """
    word = ["python:step", "python:__next__", "item", "python:wrapper", "item", "python:step"]
    assert lines_of(body, word, resumed_line=6) == [(6,), (2,), (3,), (4,), (5,), (6,)]


def test_a_wrapped_method_is_no_built_in_and_no_call_known_by_name() -> None:
    # a scheduler wraps step(), and clip_grad_norm_ shows as what torch.no_grad makes of it
    body = """
        for x in loader:
            loss = compute(x)
            for p in model.parameters():
                if not torch.isfinite(p).all():
                    print("bad")
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sched.step()
            opt.zero_grad()
    """
    calls = ["compute", "parameters", "_no_grad_wrapper", "wrapper", "step", "inner"]
    round_ = [f"python:{name}" for name in calls]
    round_[2:2] = ["isfinite", "all", "op:is_nonzero", "python:parameters"]
    found = lines_of(body, round_ * 3, name="<module>")
    assert found[6:10] == found[16:20] == found[26:30] == [(6,), (7,), (8,), (9,)]


def test_modules_are_known_by_the_class_they_are_made_of() -> None:
    body = """
        class Net:
            def __init__(self):
                self.a = nn.Linear(1, 1)
                self.b = nn.LayerNorm(1)

            def forward(self, x):
                if self.training:
                    x = self.a(x)
                else:
                    x = self.b(x)
                return x
    """
    assert lines_of(body, ["module:Linear"], name="forward") == [(8,)]
    assert lines_of(body, ["module:LayerNorm"], name="forward") == [(10,)]


@pytest.mark.parametrize(
    ("line", "called"),
    [
        ("a @ b", "op:matmul"),
        ("a[0]", "op:select"),
        ("-a", "op:neg"),
        ("a < b", "op:lt"),
        ("float(a)", "op:item"),
        ("not a", "op:is_nonzero"),
        ("f'{a}'", "python:__format__"),
        ("list(a)", "python:__iter__"),
        ("a.T", "op:numpy_T"),
        ("a.real_thing", "python:real_thing"),
        ("await a", "python:send"),
    ],
)
def test_syntax_that_calls(line: str, called: str) -> None:
    body = f"async def f(a, b):\n    c = a.abs()\n    d = {line}\n    return c.abs()\n"
    assert lines_of(body, ["abs", called, "abs"]) == [(2,), (3,), (4,)]


def test_an_operator_assignment_and_stores() -> None:
    body = """
        def f(a, b):
            a += b
            a[0] = b
            with a:
                b.exp()
    """
    word = ["op:add", "op:copy", "python:__enter__", "exp", "python:__exit__"]
    assert lines_of(body, word) == [(2,), (3,), (4,), (5,), (4,)]


def test_a_generator_runs_where_it_is_read() -> None:
    body = """
        def f(xs):
            for x in numbers(xs):
                x.item()

        def numbers(xs):
            yield 1
    """
    assert lines_of(body, ["python:numbers", "item", "python:numbers"]) == [(2,), (3,), (2,)]
    assert lines_of(body, [], name="numbers") == []


def test_long_runs_are_read_in_time_that_grows_with_their_length() -> None:
    word = ["item", "op:add", "item"] * 20_000 + ["sum"]
    source = parse(textwrap.dedent(LOOP).lstrip().encode())
    assert source.tree is not None
    flow = flow_of(source.functions[1], source.tree)
    found = align(flow, [letter(text) for text in word], wanted=[59_999])
    assert found.lines(59_999) == (5,)

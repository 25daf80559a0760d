"""What torch.compile counts is what a monitor tells."""

import pytest

from torchtriage.operate.monitor import process_metrics

# what torch itself warns of when it imports its compiler
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def told(name, **labels):
    (value,) = [value for one, has, value in process_metrics.read() if (one, has) == (name, labels)]
    return value


def test_recompilations_graph_breaks_and_cache_lookups_are_counted():
    torch = pytest.importorskip("torch")

    @torch.compile(dynamic=False)
    def double(x):
        return torch.relu(x) * 2

    @torch.compile(backend="eager")
    def broken(x):
        x = x + 1
        torch._dynamo.graph_break()
        return x * 2

    double(torch.ones(2))
    recompiled = told("compile_recompiles_total")
    breaks = told("compile_graph_breaks_total")
    looked_up = [told(f"compile_cache_{what}_total", cache="inductor") for what in ("hits", "misses")]
    double(torch.ones(3))
    assert told("compile_recompiles_total") == recompiled + 1
    after = [told(f"compile_cache_{what}_total", cache="inductor") for what in ("hits", "misses")]
    assert sum(after) == sum(looked_up) + 1
    broken(torch.ones(2))
    assert told("compile_graph_breaks_total") == breaks + 1
    assert told("compile_recompiles_total") == recompiled + 1
    double(torch.ones(3))
    assert told("compile_recompiles_total") == recompiled + 1

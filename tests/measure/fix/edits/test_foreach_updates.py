import pytest
from measure.fix.proposing import change, proposed, source

EDIT = "foreach-updates"


def test_an_average_in_a_dictionary():
    before = """
        import torch

        for step in range(100):
            train(step)
            for k, v in model.state_dict().items():
                ema[k] = decay * ema[k] + (1 - decay) * v
    """
    (after,) = proposed(before, "ema[k] =", "LCH016", EDIT)
    assert "    ks, vs = zip(*model.state_dict().items())\n    ema_values = [ema[k] for k in ks]\n" in after
    assert "torch._foreach_add(torch._foreach_mul(ema_values, decay), vs, alpha=1 - decay)" in after
    assert not proposed(after, "ema.update", "LCH016", EDIT)


def test_nothing_for_what_no_list_computes():
    before = """
        import torch

        def step(params, state):
            for p in params:
                p.data.add_(project(p.grad), alpha=-0.1)
            for p in params:
                print(p.grad.norm())
            for x in range(10):
                y = x * 2
    """
    for line in ("project", "print(", "y = x"):
        assert not proposed(before, line, "LCH016", EDIT)


def test_data_of_parameters_stays_out_of_autograd():
    before, after = change("""
        import torch


        def clip(critic, c):
      -     for p in critic.parameters():
      -         p.data.clamp_(-c, c)  # as in the paper
      +     # as in the paper
      +     params = list(critic.parameters())
      +     params_data = [p.data for p in params]
      +     torch._foreach_clamp_min_(params_data, -c)
      +     torch._foreach_clamp_max_(params_data, c)
    """)
    assert proposed(before, "clamp_", "LCH016", EDIT) == [after]


def test_a_clone_that_is_only_copied():
    before = """
        import torch

        @torch.no_grad()
        def follow(net, target):
            for p, t in zip(net.parameters(), target.parameters()):
                t.data.copy_(p.data.clone())
    """
    (after,) = proposed(before, "copy_", "LCH016", EDIT)
    assert after.endswith("    torch._foreach_copy_(ts_data, params_data)\n")


def test_a_copy_that_does_not_wait():
    before = """
        import torch

        @torch.no_grad()
        def follow(net, target):
            for p, t in zip(net.parameters(), target.parameters()):
                t.data.copy_(p.data, non_blocking=True)
    """
    (after,) = proposed(before, "copy_", "LCH016", EDIT)
    assert after.endswith("    torch._foreach_copy_(ts_data, params_data, non_blocking=True)\n")


def test_a_differentiable_sum_keeps_its_gradient():
    before, after = change("""
        import torch


        def prox(model, other):
            total = 0.0
      -     for w, w_t in zip(model.parameters(), other.database.parameters()):
      -         total += (w - w_t.data).norm(2)
      +     ws = list(model.parameters())
      +     w_ts = list(other.database.parameters())
      +     w_ts_data = [w_t.data for w_t in w_ts]
      +     total += torch.stack(torch._foreach_norm(torch._foreach_sub(ws, w_ts_data))).sum()
            return total
    """)
    assert proposed(before, "total +=", "LCH016", EDIT) == [after]


def test_what_is_done_to_data_is_unknown_to_autograd():
    torch = pytest.importorskip("torch")
    before = """
        import torch

        def decay(model, other):
            for p, q in zip(model.parameters(), other.parameters()):
                p.data.mul_(0.5).add_(q.data, alpha=0.25)
    """
    results = []
    for text in (source(before), *proposed(before, "p.data", "LCH016", EDIT)):
        torch.manual_seed(0)
        model, other = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
        space: dict[str, object] = {}
        exec(text, space)
        loss = model(model(torch.ones(2, 3))).sum()
        space["decay"](model, other)
        loss.backward()
        results.append([(p.detach(), p.grad, p._version) for p in model.parameters()])
    assert len(results) == 2
    for old, new in zip(*results, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(old[:2], new[:2], strict=True))
        assert old[2] == new[2]


@pytest.mark.parametrize(
    ("term", "made"),
    [
        ("p.grad.norm(2).item() ** 2", "torch.stack(torch._foreach_norm(grads)).square().sum().item()"),
        ("torch.norm(p.grad) ** 2", "torch.stack(torch._foreach_norm(grads)).square().sum()"),
        ("p.grad.pow(2).sum()", "torch.stack(torch._foreach_norm(grads)).square().sum()"),
        ("(p.grad ** 2).sum()", "torch.stack(torch._foreach_norm(grads)).square().sum()"),
        ("p.grad.abs().sum()", "torch.stack(torch._foreach_norm(grads, 1)).sum()"),
    ],
)
def test_sums_of_norms(term, made):
    before = f"""
        import torch

        def norm(model):
            total = 0.0
            for p in model.parameters():
                if p.grad is not None:
                    total += {term}
            return total ** 0.5
    """
    (after,) = proposed(before, "total +=", "LCH016", EDIT)
    assert after.endswith(f"""
    total = 0.0
    params = [p for p in model.parameters() if p.grad is not None]
    grads = [p.grad for p in params]
    if params:
        total += {made}
    return total ** 0.5
""")


def test_the_norm_is_the_same():
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(3, 2)
    model(torch.rand(4, 3)).sum().backward()
    before = """
        import torch

        def norm(model):
            total = 0.0
            for name, p in model.named_parameters():
                size = p.grad.data.norm(2)
                total += size.item() ** 2
            return total ** 0.5
    """
    results = []
    for text in (source(before), *proposed(before, "total +=", "LCH016", EDIT)):
        space: dict[str, object] = {}
        exec(text, space)
        results.append(space["norm"](model))
    assert len(results) == 2
    assert results[0] == pytest.approx(results[1])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "sum(p.pow(2).sum() for p in net.parameters())",
            "torch.stack(torch._foreach_norm([p for p in net.parameters()])).square().sum()",
        ),
        (
            "sum((p - q).pow(2).sum() for p, q in zip(net.parameters(), start))",
            "torch.stack(torch._foreach_norm([p - q for p, q in zip(net.parameters(), start)])).square().sum()",
        ),
        (
            "torch.stack([p.grad.detach().norm(2) for p in params if p.grad is not None]).norm()",
            "torch.stack(torch._foreach_norm([p.grad.detach() for p in params if p.grad is not None])).norm()",
        ),
        ("sum(p.numel() for p in net.parameters())", ""),
        ("sum((p.pow(2) * w).sum() for p, w in zip(net.parameters(), start))", ""),
    ],
)
def test_norms_in_a_comprehension(before, after):
    text = "import torch\n\n\ndef penalty(net, start, params):\n    return {}\n"
    wanted = [text.format(after)] if after else []
    assert proposed(text.format(before), "return", "HST114", EDIT) == wanted

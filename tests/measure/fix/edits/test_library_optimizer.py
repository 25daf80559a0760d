from measure.fix.proposing import proposed

EDIT = "library-optimizer"
ADAMW = """
import torch

class PlainAdamW:
    def __init__(self, params, lr, betas=(0.9, 0.95), eps=1e-8, wd=0.1):
        self.params, self.lr, self.betas, self.eps, self.wd, self.t = list(params), lr, betas, eps, wd, 0

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def step(self):
        for p, m, v in zip(self.params, self.m, self.v):
            p.mul_(1 - self.lr * self.wd)
            v.mul_(0.9).addcmul_(p.grad, p.grad, value=0.1)
            p.sub_(self.lr * m / (v.sqrt() + self.eps))

opt = PlainAdamW(model.parameters(), lr)
for x in loader:
    opt.zero_grad()
    model(x).mean().backward()
    opt.step()
"""


def test_a_class_of_a_script_is_replaced():
    after = proposed(ADAMW, "p.mul_", "LCH016", EDIT)[0]
    assert "class" not in after
    wanted = "torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True)"
    assert f"opt = {wanted}\n" in after
    assert proposed(ADAMW, "    opt.step()", "HST114", EDIT) == [after]
    assert not proposed(after, "opt.step()", "LCH016", EDIT)


def test_two_coefficients_are_a_pair():
    before = ADAMW.replace("betas=(0.9, 0.95)", "beta1=0.9, beta2=0.95").replace(
        "            p.mul_(1 - self.lr * self.wd)\n", ""
    )
    (after,) = proposed(before, "v.mul_", "LCH016", EDIT)
    assert "torch.optim.Adam(model.parameters(), lr=lr, betas=(0.9, 0.95), eps=1e-8" in after


def test_nothing_for_other_options_or_uses():
    assert not proposed(ADAMW.replace("wd=0.1", "rho=0.1"), "p.mul_", "LCH016", EDIT)
    assert not proposed(ADAMW + "    opt.lr = opt.lr * 0.9\n", "p.mul_", "LCH016", EDIT)


def test_nothing_where_a_step_has_a_schedule():
    step = "            p.sub_(self.lr * m / (v.sqrt() + self.eps))\n"
    counted = ADAMW.replace("    def step(self):\n", "    def step(self):\n        self.t += 1\n")
    assert proposed(counted, "p.mul_", "LCH016", EDIT)
    corrected = counted.replace(step, step.replace("m /", "m / (1 - 0.9 ** self.t) /"))
    assert proposed(corrected, "p.mul_", "LCH016", EDIT)
    for rate in ("0.5 ** (self.t // 100)", "0.5 ** self.t", "min(1, self.t / 100)", "(1 if self.t < 9 else 0.1)"):
        assert not proposed(counted.replace(step, step.replace("self.lr", rate)), "p.mul_", "LCH016", EDIT)


def test_nothing_where_an_option_is_set_later():
    decay = "\ndef decay(optimizer, step):\n    if step > 1000:\n        optimizer.lr = 0.01\n"
    assert not proposed(ADAMW + decay, "p.mul_", "LCH016", EDIT)
    assert not proposed(ADAMW + "    anneal(opt)\n", "p.mul_", "LCH016", EDIT)

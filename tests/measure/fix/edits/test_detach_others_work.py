from __future__ import annotations

import pytest
from tests.measure.fix.proposing import proposed

STEP = """
    def step(self, real, noise):
        fake = self.generator(noise)
        shown = augment(fake.view(len(fake), -1))
        on_real, on_fake = self.critic(real), self.critic({shown})
        loss = on_fake.mean() - on_real.mean() + penalty(self.critic, real, {fake})
        self.critic_optimizer.zero_grad()
        loss.backward(retain_graph=True)
        self.critic_optimizer.step()
        fake.mean().backward()
"""


def detached(text: str, *models: str) -> list[str]:
    return proposed(text, "loss.backward(", "OPT103", "detach-others-work", {"models": list(models), "needless": True})


def test_all_that_the_loss_is_computed_of_is_detached():
    before = STEP.format(shown="shown", fake="fake")
    (after,) = detached(before, "generator")
    assert "augment(fake.detach().view(len(fake), -1))" in after
    assert "penalty(self.critic, real, fake.detach())" in after
    assert "    fake.mean().backward()" in after
    assert not detached(after, "generator")


def test_what_is_made_in_the_call_itself():
    before = """
        noise = torch.randn(4, 8)
        loss = critic(actor(noise)).mean()
        loss.backward()
    """
    (after,) = detached(before, "actor")
    assert "loss = critic(actor(noise).detach()).mean()" in after


@pytest.mark.parametrize("models", [(), ("decoder",)])
def test_models_that_are_not_known_or_not_used_here(models):
    assert not detached(STEP.format(shown="shown", fake="fake"), *models)


def test_a_model_that_is_known_by_its_class():
    before = """
        class Trainer:
            def __init__(self):
                self.G, self.D = Generator(), Discriminator()
                self.H = Generator()

            def backward_d(self, noise):
                fake = self.H(noise)
                loss = self.D(fake).mean()
                loss.backward(retain_graph=True)
    """
    (after,) = detached(before, "Generator")
    assert "self.D(fake.detach())" in after


def test_the_line_that_the_work_goes_in_at():
    before = """
        def backward_d(self, noise):
            fake = self.generator(noise)
            judged = self.D(fake)
            loss = judged.mean()
            loss.backward()
    """
    (after,) = proposed(
        before, "judged = ", "OPT103", "detach-others-work", {"models": ["generator"], "needless": True}
    )
    assert "judged = self.D(fake.detach())" in after


def test_what_another_loss_needs_keeps_its_graph():
    before = """
        fake = (generator(noise) + 1) / 2
        loss = criterion(critic(real), 1) + criterion(critic(fake), 0)
        loss.backward(retain_graph=True)
        criterion(critic(fake), 1).backward()
    """
    (after,) = detached(before, "generator")
    assert "fake = (generator(noise) + 1) / 2" in after
    assert "criterion(critic(fake.detach()), 0)" in after
    assert "criterion(critic(fake), 1).backward()" in after


def test_a_verdict_that_two_losses_share_stays():
    before = """
        import torch
        from torch import nn
        generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
        critic = nn.Linear(4, 1)
        for step in range(100):
            judged = critic(generator(noise))
            loss = judged.mean()
            loss.backward(retain_graph=True)
            (-judged).mean().backward()
    """
    assert not detached(before, "generator")


def test_a_result_that_is_kept_in_an_attribute():
    before = """
        class Trainer:
            def forward(self, noise):
                self.fake = self.generator(noise)

            def backward_d(self):
                judged = self.D(self.fake)
                loss = judged.mean()
                loss.backward(retain_graph=True)

            def backward_g(self):
                loss = -self.D(self.fake).mean()
                loss.backward()
    """
    (after,) = detached(before.replace("loss.backward()", "loss.backward( )"), "generator")
    assert "judged = self.D(self.fake.detach())" in after
    assert "loss = -self.D(self.fake).mean()" in after


def test_the_model_itself_is_no_result():
    before = """
        class Trainer:
            def __init__(self):
                self.G = Generator()

            def backward_d(self, noise):
                loss = self.D(self.G(noise)).mean() + penalty(self.G)
                loss.backward()
    """
    (after,) = detached(before, "Generator")
    assert "loss = self.D(self.G(noise).detach()).mean() + penalty(self.G)" in after

from __future__ import annotations

from tests.measure.fix.proposing import proposed

UPDATE = """
    def update_actor(self, state):
        action, log_prob = self.actor(state)
        loss = (log_prob - self.critic(state, action)).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
"""


def frozen(text: str, *, needless: bool = False) -> list[str]:
    evidence = {"models": ["critic"], "needless": needless}
    return proposed(text, "loss = ", "OPT103", "freeze-for-step", evidence)


def test_the_critic_has_no_gradients_of_its_weights_for_the_actors_loss():
    (after,) = frozen(UPDATE)
    assert [line.strip() for line in after.splitlines()][2:] == [
        "trained = [weight for weight in self.critic.parameters() if weight.requires_grad]",
        "for weight in trained:",
        "weight.requires_grad_(False)",
        "loss = (log_prob - self.critic(state, action)).mean()",
        "self.optimizer.zero_grad()",
        "loss.backward()",
        "for weight in trained:",
        "weight.requires_grad_(True)",
        "self.optimizer.step()",
    ]
    assert not frozen(after)


def test_what_goes_back_for_nothing_or_has_another_backward_pass_is_left_alone():
    assert not frozen(UPDATE, needless=True)
    assert not frozen(UPDATE.replace("loss.backward()", "self.go(loss)"))
    other = "other = self.critic(state, action).mean()\n        other.backward()\n        loss.backward()"
    assert not frozen(UPDATE.replace("loss.backward()", other))
    assert not frozen(UPDATE.replace("loss.backward()", "other.backward()\n        loss.backward()"))

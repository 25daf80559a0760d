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
    lines = [line.strip() for line in after.splitlines()]
    assert lines[2:4] == ["self.critic.requires_grad_(False)", "loss = (log_prob - self.critic(state, action)).mean()"]
    assert lines[5:7] == ["loss.backward()", "self.critic.requires_grad_(True)"]
    assert not frozen(after)


def test_what_goes_back_for_nothing_or_is_frozen_by_hand_is_left_alone():
    assert not frozen(UPDATE, needless=True)
    plain = UPDATE.replace("\n    ", "\n")
    assert frozen("target = Critic().requires_grad_(False)\n" + plain)
    assert not frozen("set_requires_grad(self.critic, False)\n" + plain)
    assert not frozen(UPDATE.replace("loss.backward()", "self.go(loss)"))

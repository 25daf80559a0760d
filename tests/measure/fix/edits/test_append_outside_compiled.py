from measure.fix.proposing import proposed

EDIT = "append-outside-compiled"
SIMULATION = """
import torch

class Simulation:
    def __init__(self):
        self.mass = []
        self.advance = torch.compile(self._advance)

    def _advance(self, u, v):
        u = u + v
        self.mass.append(v.mean())
        return u, v

    def step(self):
        self.u, self.v = self.advance(self.u, self.v)
"""


def test_a_value_is_one_more_result():
    (after,) = proposed(SIMULATION, "self.mass.append", "CMP031", EDIT)
    assert "        u = u + v\n        return u, v, v.mean()\n" in after
    assert "        self.u, self.v, mass = self.advance(self.u, self.v)\n        self.mass.append(mass)\n" in after
    assert not proposed(after, "self.mass.append", "CMP031", EDIT)


def test_one_result_becomes_two():
    before = SIMULATION.replace("return u, v", "return u").replace("self.u, self.v = ", "self.u = ")
    (after,) = proposed(before, "self.mass.append", "CMP031", EDIT)
    assert "return u, v.mean()\n" in after
    assert "self.u, mass = self.advance(self.u, self.v)\n        self.mass.append(mass)\n" in after


def test_a_decorated_method():
    before = SIMULATION.replace("        self.advance = torch.compile(self._advance)\n", "")
    before = before.replace("    def _advance", "    @torch.compile\n    def _advance").replace(
        ".advance(", "._advance("
    )
    (after,) = proposed(before, "self.mass.append", "CMP031", EDIT)
    assert "self.u, self.v, mass = self._advance(self.u, self.v)" in after


def test_nothing_where_the_value_changes_after_it_or_several_call():
    changed = SIMULATION.replace("        return u, v", "        v = v * 2\n        return u, v")
    assert not proposed(changed, "self.mass.append", "CMP031", EDIT)
    twice = SIMULATION + "        self.u, self.v = self.advance(self.u, self.v)\n"
    assert not proposed(twice, "self.mass.append", "CMP031", EDIT)

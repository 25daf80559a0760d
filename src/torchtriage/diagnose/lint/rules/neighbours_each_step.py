"""A simulation searches for all neighbours again in each step.

Looks like: ``i, j = neighbours(system, cutoff)`` in the forces of each step, with the distances of all pairs.
Slow because: positions move a little in a step, and the search is quadratic: it costs more than the forces.
Fix: a list with a margin (a skin), built again when a particle has moved half of it; a cell list.
Quiet when: it is behind a condition, or a model is trained.
Source: Allen and Tildesley, "Computer Simulation of Liquids", Verlet lists.
"""

import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, text_of

RULE = Rule("LCH112", "neighbours-each-step", "launch", "A neighbour search runs in every simulation step", "low")

FIX = Fix(
    text="Keep a neighbour list with a margin, and rebuild it when something has moved by half the margin.",
    code="""if (positions - built_at).norm(dim=-1).max() > skin / 2:     # checked every few steps
    pairs, built_at = neighbours(positions, cutoff + skin), positions.clone()""",
    link="https://docs.lammps.org/neighbor.html",
)

_SEARCHES = re.compile(r"neigh|(^|_)nlist|nbr_?list|pair_?list|radius_graph|cell_?list|verlet_list")
_SIMULATES = re.compile(r"veloc|langevin|verlet|thermostat|integrator|\bdt\b|\bvel\b", re.IGNORECASE)


def find(module: Module) -> Iterator[Hit]:
    """Yield searches for neighbours in steps that move particles."""
    if not module.is_program or ".backward(" in module.text:
        return
    for call in module.calls:
        if not _SEARCHES.search(call.attr) or call.attr[:1].isupper() or not call.node.args:
            continue
        if not _SIMULATES.search(module.text) or call.context.rare or not module.repeats(call.context):
            continue
        yield Hit(call.node, f"all neighbours are searched in every step: {text_of(call.node)}", call.attr)

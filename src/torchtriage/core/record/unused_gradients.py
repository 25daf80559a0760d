"""In the script's process: parameters that get a gradient in every step, and that no optimizer has."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torchtriage.core.record.thrown_gradients import ThrownGradients

if TYPE_CHECKING:  # here only the script imports torch
    import torch

MOST_NAMES = 5


class GradientWatch:
    """Notes at one step's end which gradients nobody takes, and at the next one's which of them were written again.

    A gradient that stays as it is is left from something that is over, such as a training before this one.
    """

    def __init__(self) -> None:
        import torch

        self._versions: list[tuple[weakref.ref[torch.nn.Parameter], tuple[int, int]]] = []
        self._n_taken = 0
        self._modules: list[weakref.ref[torch.nn.Module]] = []
        optimizers: list[torch.optim.Optimizer] = []
        taken: dict[int, torch.nn.Parameter] = {}
        parameters: list[torch.nn.Parameter] = []
        for found in gc.get_objects():
            kind = type(found)
            if issubclass(kind, torch.nn.Parameter):
                parameters.append(found)
            elif issubclass(kind, torch.optim.Optimizer):
                optimizers.append(found)
                taken.update((id(given), given) for group in found.param_groups for given in group["params"])
            elif issubclass(kind, torch.nn.Module):
                self._modules.append(weakref.ref(found))
        if taken:  # what takes no optimizer may take gradients by hand
            free = [given for given in parameters if id(given) not in taken and given.grad is not None]
            self._versions = [(weakref.ref(given), _version(given)) for given in free]
            self._n_taken = sum(given.numel() for given in taken.values())
        self.thrown = ThrownGradients(optimizers, self._largest)

    def facts(self) -> dict[str, Any] | None:
        """Return how many numbers have gradients that nobody takes, and of how many; None where it is nothing."""
        unused = [
            given
            for reference, before in self._versions
            if (given := reference()) is not None and given.grad is not None and _version(given) != before
        ]
        if not unused:
            return None
        return {
            "unused": sum(given.numel() for given in unused),
            "taken": self._n_taken,
            "parameters": len(unused),
            "modules": list(self._largest({id(given) for given in unused}))[:MOST_NAMES],
        }

    def _largest(self, some: set[int]) -> dict[str, torch.nn.Module]:
        """Return the largest modules all of whose parameters are among some, by their names in the script."""
        modules = [module for reference in self._modules if (module := reference()) is not None]
        whole = [module for module in modules if _ids(module.parameters()) and _ids(module.parameters()) <= some]
        inner = {id(part) for module in whole for part in module.modules() if part is not module}
        names = {id(value): name for name, value in list(vars(sys.modules["__main__"]).items())}
        names |= {id(part): name for module in modules for name, part in module.named_children()}
        largest = [module for module in whole if id(module) not in inner]
        largest.sort(key=lambda module: -sum(given.numel() for given in module.parameters()))
        return {names.get(id(module)) or type(module).__name__: module for module in largest}


def _ids(parameters: Iterable[torch.nn.Parameter]) -> set[int]:
    return {id(given) for given in parameters}


def _version(given: torch.nn.Parameter) -> tuple[int, int]:
    gradient = given.grad
    return (0, 0) if gradient is None else (id(gradient), gradient._version)

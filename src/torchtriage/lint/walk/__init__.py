"""One pass over a file: scopes, imports, loops, conditions and the flow of tensors."""

from torchtriage.lint.walk.effects import is_optimizer_step
from torchtriage.lint.walk.order import walk

__all__ = ["is_optimizer_step", "walk"]

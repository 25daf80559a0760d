"""One pass over a file: scopes, imports, loops, conditions and the flow of tensors."""

from torchtriage.diagnose.lint.walk.effects import is_optimizer_step
from torchtriage.diagnose.lint.walk.order import walk

__all__ = ["is_optimizer_step", "walk"]

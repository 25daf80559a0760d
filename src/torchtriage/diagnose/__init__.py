"""From a trace to a judgement: can it be trusted, what is wrong, what would fixing it give back."""

from torchtriage.diagnose.doctor import examine
from torchtriage.diagnose.verdict import diagnose

__all__ = ["diagnose", "examine"]

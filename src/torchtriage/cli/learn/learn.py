"""``torchtriage benchmark learn``: the command of the distribution torchtriage-benchmark."""

from torchtriage.cli.learn.dataset import not_installed

try:
    from torchtriage_benchmark.commands.learn import command
except ModuleNotFoundError as error:
    raise not_installed(error) from None

__all__ = ["command"]

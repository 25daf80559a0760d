"""``python -m torchtriage``."""

from torchtriage.cli.main import main

main()

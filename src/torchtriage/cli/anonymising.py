"""``--anonymise`` for commands that report on recordings: what they read has pseudonyms from the start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import click

from torchtriage.cli.options import Command, file_option
from torchtriage.core.anonymous import anonymous
from torchtriage.core.errors import UsageError


def anonymise_options(function: Command) -> Command:
    """Add ``--anonymise`` and ``--key``; the command runs with every trace that it reads anonymised."""

    @click.option("--anonymise", is_flag=True, help="Replace private names and paths in the report with pseudonyms.")
    @file_option("--key", "Key file of --anonymise, created if missing; translates the report back.")
    @wraps(function)
    def wrapped(*args: Any, anonymise: bool, key: str | None, **given: Any) -> Any:
        if not anonymise:
            if key is not None:
                raise UsageError("--key needs --anonymise")
            return function(*args, **given)
        with _pseudonyms(key):
            return function(*args, **given)

    return wrapped  # type: ignore[return-value]


@contextmanager
def _pseudonyms(key: str | None) -> Iterator[None]:
    from torchtriage.core.trace.anonymise import Anonymiser
    from torchtriage.core.trace.pseudonyms import Pseudonyms

    names = Pseudonyms() if key is None else Pseudonyms.of_file(key)
    try:
        with anonymous(Anonymiser(names)):
            yield
    finally:
        # also where the command ends with an exit code
        if key is not None:
            names.save(key)

"""Feature flags by device traits: which machines get what, through OpenFeature or without it.

A flag is tried rule by rule; the first rule whose conditions hold for the device, and whose share
holds the key, gives the value::

    flags = Flags({
        "int8-detector": Flag(False, (
            FlagRule(True, when={"gpu": "*A10*|*L4*", "gpu memory": ">=16", "driver": ">=535"}),
            FlagRule(True, when={"gpu": "*T4*"}, share=0.05),
        )),
    })
    flags.value("int8-detector", key="user-17")
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

from torchtriage.core.errors import MissingExtraError, UsageError
from torchtriage.core.machine import gather_machine
from torchtriage.operate.experiment.split import Split

_COMPARED = re.compile(r"(>=|<=|==|!=|>|<)\s*(.+)")


@dataclass(frozen=True)
class FlagRule:
    """A value for the devices that it is for.

    ``when`` : for each trait a pattern (``*A10*|*L4*``, in any case) or a comparison of versions or
    amounts (``>=535.104``, ``>=16``); a trait that the device does not have holds for none of them.
    ``share`` : of keys that get the value; they stay while it grows.
    """

    value: Any
    when: Mapping[str, str] = field(default_factory=dict)
    share: float = 1.0


@dataclass(frozen=True)
class Flag:
    """What a flag is where no rule holds, and the rules."""

    default: Any
    rules: tuple[FlagRule, ...] = ()


class Flags:
    """Flags of one device.

    ``traits`` : :func:`device_traits` by default.
    Raises ``UsageError``: a share out of 0 to 1, or a comparison with what has no number.
    """

    def __init__(self, flags: Mapping[str, Flag], traits: Mapping[str, str] | None = None) -> None:
        self.traits = dict(device_traits() if traits is None else traits)
        # what a device is does not change: only shares are left to look at
        self._left: dict[str, tuple[Any, list[tuple[Any, Split]]]] = {}
        for name, flag in flags.items():
            rules = [
                (rule.value, Split(name, rule.share))
                for rule in flag.rules
                if all(_holds(self.traits.get(trait), want) for trait, want in rule.when.items())
            ]
            self._left[name] = (flag.default, rules)

    def value(self, name: str, key: str = "") -> Any:
        """Return the value of a flag; ``key`` is what shares split: without one none applies."""
        return self.resolve(name, key)[0]

    def resolve(self, name: str, key: str = "") -> tuple[Any, str]:
        """Return the value and why: ``TARGETING_MATCH``, ``SPLIT``, ``DEFAULT``; ``UsageError`` for an unknown flag."""
        if name not in self._left:
            raise UsageError(f"no flag is called {name!r}", hint=f"there are {', '.join(self)}")
        default, rules = self._left[name]
        for value, split in rules:
            if split.share >= 1:
                return value, "TARGETING_MATCH"
            # without a key there is nothing to split: a share of everybody would be all or none
            if key and split.treats(key):
                return value, "SPLIT"
        return default, "DEFAULT"

    def __iter__(self) -> Any:
        """Yield the names of the flags."""
        return iter(self._left)


@cache
def device_traits() -> dict[str, str]:
    """Return what is known of this machine's device: ``gpu``, ``gpu memory``, ``driver`` and such.

    Asks ``nvidia-smi`` once per process; traits that cannot be learned are left out.
    """
    return dict(gather_machine().fields)


def provider(flags: Flags) -> Any:
    """Return these flags as a provider for the OpenFeature SDK, which the extra ``flags`` installs.

    ``api.set_provider(provider(flags))``; the targeting key is what shares split.
    """
    try:
        base: Any = import_module("openfeature.provider")
        details: Any = import_module("openfeature.flag_evaluation")
        errors: Any = import_module("openfeature.exception")
    except ImportError as error:
        raise MissingExtraError(
            "feature flags need the OpenFeature SDK, which is not installed", hint="pip install 'torchtriage[flags]'"
        ) from error

    def resolve(kinds: tuple[type, ...]) -> Any:
        def details_of(self: Any, flag_key: str, default_value: Any, evaluation_context: Any = None) -> Any:
            try:
                key = getattr(evaluation_context, "targeting_key", None) or ""
                value, reason = flags.resolve(flag_key, key)
            except UsageError as error:
                raise errors.FlagNotFoundError(error.message) from error
            # True is an int for Python, and no number for anybody else
            if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                raise errors.TypeMismatchError(f"{flag_key} is {type(value).__name__}")
            return details.FlagResolutionDetails(value=value, reason=reason)

        return details_of

    return type(
        "TraitsProvider",
        (base.AbstractProvider,),
        {
            "get_metadata": lambda self: base.Metadata(name="torchtriage"),
            "resolve_boolean_details": resolve((bool,)),
            "resolve_string_details": resolve((str,)),
            "resolve_integer_details": resolve((int,)),
            "resolve_float_details": resolve((float, int)),
            "resolve_object_details": resolve((dict, list, tuple)),
        },
    )()


def _holds(trait: str | None, want: str) -> bool:
    compared = _COMPARED.fullmatch(want.strip())
    if compared is None:
        patterns = [pattern.strip().lower() for pattern in want.split("|")]
        return trait is not None and any(fnmatch.fnmatchcase(trait.lower(), pattern) for pattern in patterns)
    sign, limit_text = compared.groups()
    limit = _numbers(limit_text)
    if not limit:
        raise UsageError(f"expected a number or a version to compare with, found {want!r}")
    numbers = _numbers(trait or "")
    if not numbers:
        return False
    width = max(len(numbers), len(limit))
    own, other = (tuple(x) + (0,) * (width - len(x)) for x in (numbers, limit))
    results = {">=": own >= other, "<=": own <= other, ">": own > other, "<": own < other}
    return results.get(sign, (own == other) == (sign == "=="))


def _numbers(text: str) -> tuple[int, ...]:
    match = re.search(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in match.group().split(".")) if match else ()

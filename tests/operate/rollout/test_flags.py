"""Flags are for the devices they are for."""

from __future__ import annotations

import sys

import pytest

from torchtriage.core.errors import MissingExtraError, UsageError
from torchtriage.operate.rollout.flags import Flag, FlagRule, Flags, device_traits, provider

A10 = {"gpu": "NVIDIA A10G", "gpu memory": "24 GiB", "driver": "535.104.05"}


@pytest.mark.parametrize(
    ("when", "holds"),
    [
        ({}, True),
        ({"gpu": "*a10*"}, True),
        ({"gpu": "*T4*|*A10*"}, True),
        ({"gpu": "*H100*"}, False),
        ({"gpu": "A10"}, False),
        ({"gpu memory": ">=16"}, True),
        ({"gpu memory": ">=24"}, True),
        ({"gpu memory": "> 24"}, False),
        ({"gpu memory": "<100"}, True),
        ({"driver": ">=535"}, True),
        ({"driver": ">=535.104.5"}, True),
        ({"driver": ">=535.2"}, True),
        ({"driver": "<535.104"}, False),
        ({"driver": "==535.104.05"}, True),
        ({"driver": "!=535.104.05"}, False),
        ({"gpu": "*A10*", "driver": ">=600"}, False),
        ({"tpu": "*"}, False),
        ({"tpu": ">=1"}, False),
    ],
)
def test_conditions(when: dict[str, str], holds: bool) -> None:
    flags = Flags({"int8": Flag("off", (FlagRule("on", when=when),))}, A10)
    assert flags.value("int8") == ("on" if holds else "off")


def test_shares_split_keys_and_keep_them() -> None:
    def on(share: float) -> set[str]:
        flags = Flags({"int8": Flag(False, (FlagRule(True, share=share),))}, A10)
        return {f"user-{n}" for n in range(2000) if flags.value("int8", f"user-{n}")}

    assert 60 < len(on(0.05)) < 140
    assert on(0.05) < on(0.5) < on(1.0)
    for share in (0.5, 0.99):
        assert Flags({"x": Flag(0, (FlagRule(1, share=share),))}, {}).resolve("x") == (0, "DEFAULT")


def test_the_first_rule_that_holds_gives_the_value() -> None:
    rules = (FlagRule(1, when={"gpu": "*T4*"}), FlagRule(2, when={"gpu": "*A10*"}), FlagRule(3))
    assert Flags({"batch": Flag(0, rules)}, A10).resolve("batch") == (2, "TARGETING_MATCH")
    assert Flags({"batch": Flag(0, rules)}, {}).value("batch") == 3


def test_what_cannot_be_meant_is_refused() -> None:
    with pytest.raises(UsageError, match="to compare with, found '>=many'"):
        Flags({"x": Flag(0, (FlagRule(1, when={"driver": ">=many"}),))}, {})
    with pytest.raises(UsageError, match="no flag is called 'y'"):
        Flags({"x": Flag(0)}, {}).value("y")
    with pytest.raises(UsageError, match="expected a share"):
        Flags({"x": Flag(0, (FlagRule(1, share=2),))}, {})


def test_this_machine_has_traits() -> None:
    assert {"cpu", "os"} <= device_traits().keys()


def test_openfeature_asks_us() -> None:
    api = pytest.importorskip("openfeature.api")
    context = pytest.importorskip("openfeature.evaluation_context")
    flags = {
        "on": Flag(False, (FlagRule(True, when={"gpu": "*A10*"}),)),
        "name": Flag("full"),
        "batch": Flag(8),
        "limit": Flag(0.5),
        "modes": Flag(["a"]),
        "few": Flag(False, (FlagRule(True, share=0.5),)),
    }
    api.set_provider(provider(Flags(flags, A10)))
    client = api.get_client()
    assert client.get_boolean_value("on", False) is True
    assert client.get_string_value("name", "") == "full"
    assert client.get_integer_value("batch", 1) == 8
    assert client.get_float_value("limit", 0.0) == 0.5
    assert client.get_object_value("modes", []) == ["a"]
    assert client.get_integer_value("on", 7) == 7
    assert client.get_boolean_value("unknown", True) is True
    told = {
        client.get_boolean_details("few", False, context.EvaluationContext(targeting_key=f"user-{n}")).value
        for n in range(20)
    }
    assert told == {True, False}
    assert client.get_boolean_details("unknown", True).error_code is not None
    api.clear_providers()


def test_the_extra_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "openfeature.provider", None)
    with pytest.raises(MissingExtraError, match="torchtriage\\[flags\\]"):
        provider(Flags({}, {}))

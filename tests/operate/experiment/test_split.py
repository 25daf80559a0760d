"""Who is treated is the same everywhere, and stays so while the share grows."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest

from torchtriage.core.errors import UsageError
from torchtriage.operate.experiment.split import N_PLACES, Split, point

# of the documented algorithm by coreutils: printf '%s\0%s' SALT ID | sha256sum | cut -c1-8
GOLDEN = [
    ("checkout", "user-1", 0x0A3D5DB6),
    ("checkout", "user-2", 0x550EFFC4),
    ("detector-int8", "", 0xBFB6A5E2),
    ("detector-int8", "Grüße-世界", 0x085748D8),
    ("detector-int8", "42", 0x83CBCCC5),
]


@pytest.mark.parametrize(("salt", "id", "place"), GOLDEN)
def test_golden_vectors(salt: str, id: str, place: int) -> None:
    assert point(salt, id) == place
    assert point(salt, id.encode()) == place
    digest = hashlib.sha256(salt.encode() + b"\0" + id.encode()).digest()
    assert int.from_bytes(digest[:4], "big") == place


def test_integers_are_their_digits() -> None:
    assert point("detector-int8", 42) == point("detector-int8", "42")
    assert point("detector-int8", -1) == point("detector-int8", "-1")


def test_the_same_in_other_processes_whatever_the_hash_seed() -> None:
    program = (
        "import json; from torchtriage.operate.experiment.split import point;"
        "print(json.dumps([point('s', str(n)) for n in range(50)]))"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert [json.loads(one) for one in told] == [[point("s", str(n)) for n in range(50)]]


@pytest.fixture(scope="module")
def places() -> np.ndarray:
    split = Split("first", 0.5)
    return np.array([split.place(f"user-{n}") for n in range(200_000)], np.int64)


def test_places_are_even(places: np.ndarray) -> None:
    counts, _ = np.histogram(places, bins=100, range=(0, N_PLACES))
    expected = len(places) / 100
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 149  # 99 degrees of freedom, p = 0.001


def test_exposure_only_grows(places: np.ndarray) -> None:
    split = Split("first", 0)
    ids = [f"user-{n}" for n in range(2000)]
    before: set[str] = set()
    for percent in range(101):
        split.share = percent / 100
        now = {id for id in ids if split.treats(id)}
        assert before <= now
        before = now
        exposed = float((places < int(split.share * N_PLACES)).mean())
        assert exposed == pytest.approx(split.share, abs=0.005)
    assert len(before) == len(ids)


def test_splits_of_other_salts_do_not_know_of_each_other(places: np.ndarray) -> None:
    other = Split("second", 0.5)
    others = np.array([other.place(f"user-{n}") for n in range(len(places))], np.int64)
    assert abs(np.corrcoef(places, others)[0, 1]) < 0.01


def test_share_zero_treats_nobody_and_one_everybody() -> None:
    assert not any(Split("s", 0).treats(n) for n in range(1000))
    assert all(Split("s", 1).treats(n) for n in range(1000))


def test_text_that_is_no_unicode_has_a_place() -> None:
    assert 0 <= point("s", "\udc80") < N_PLACES


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_shares_that_are_none_are_refused(share: float) -> None:
    with pytest.raises(UsageError, match="expected a share of 0 to 1"):
        Split("s", share)


@pytest.mark.parametrize("salt", ["", "a\0b"])
def test_salts_that_are_ambiguous_are_refused(salt: str) -> None:
    with pytest.raises(UsageError, match="expected a salt"):
        Split(salt, 0.5)


@pytest.mark.parametrize("id", [None, 1.5, True, ("a",)])
def test_ids_that_others_would_write_otherwise_are_refused(id: object) -> None:
    with pytest.raises(UsageError, match="expected an id"):
        point("s", id)  # type: ignore[arg-type]

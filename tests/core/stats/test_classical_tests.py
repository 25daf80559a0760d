from __future__ import annotations

import math

import numpy as np
import pytest

from torchtriage.core.stats.classical_tests import cohen_d, mann_whitney, welch
from torchtriage.core.stats.difference import student_tail

# Student's own sleep data (1908): extra hours with each of two drugs
DRUG_1 = np.array([0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0])
DRUG_2 = np.array([1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4])


def test_welch_is_what_every_package_says_of_the_sleep_data() -> None:
    t, df, p = welch(DRUG_1, DRUG_2)
    assert t == pytest.approx(1.8608, abs=1e-4)
    assert df == pytest.approx(17.776, abs=1e-3)
    assert p == pytest.approx(0.07939, abs=1e-5)


def test_mann_whitney_is_what_r_says_of_the_sleep_data() -> None:
    # wilcox.test(extra ~ group): W = 25.5 of the first group, p = 0.06933 with ties
    u, p = mann_whitney(DRUG_1, DRUG_2)
    assert u == 100 - 25.5
    assert p == pytest.approx(0.06933, abs=1e-5)


def test_cohens_d_is_in_pooled_deviations() -> None:
    assert cohen_d(np.array([1.0, 3.0]), np.array([3.0, 5.0])) == pytest.approx(2 / math.sqrt(2))
    assert cohen_d(DRUG_1, DRUG_2) == pytest.approx(0.8322, abs=1e-4)


def test_a_hundred_values_make_the_usual_effect_size_rule_empty() -> None:
    """p < 0.05 with 100 values a side implies |d| > 0.28: "and |d| > 0.2" never matters."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        one, other = rng.standard_normal((2, 100))
        if welch(one, other).p_value < 0.05:
            assert abs(cohen_d(one, other)) > 0.27


def test_on_independent_values_the_tests_keep_their_level() -> None:
    rng = np.random.default_rng(1)
    p = np.array([(welch(a, b).p_value, mann_whitney(a, b).p_value) for a, b in rng.standard_normal((1000, 2, 15))])
    assert ((p < 0.05).mean(axis=0) < 0.07).all()
    assert ((p < 0.05).mean(axis=0) > 0.03).all()


@pytest.mark.parametrize(
    ("t", "df", "tail"),
    # Fisher and Yates, table III; the last by the closed form for one degree of freedom
    [
        (2.776, 4, 0.025),
        (2.539, 19, 0.01),
        (3.883, 19, 0.0005),
        (1.645, 1e7, 0.05),
        (1000.0, 1, math.atan(1 / 1000) / math.pi),
    ],
)
def test_tails_of_students_t_are_those_of_the_tables(t, df, tail) -> None:
    assert student_tail(t, df) == pytest.approx(tail, rel=2e-3)
    assert student_tail(-t, df) == pytest.approx(1 - tail, rel=2e-3)


def test_constant_values_have_no_answer() -> None:
    still = np.ones(5)
    assert math.isnan(welch(still, still).p_value)
    assert math.isnan(cohen_d(still, still))
    assert math.isnan(mann_whitney(still, still).p_value)


@pytest.mark.parametrize("test", [welch, cohen_d, mann_whitney])
def test_too_few_or_infinite_values_are_refused(test) -> None:
    with pytest.raises(ValueError, match="at least 2"):
        test(np.ones(1), np.ones(5))
    with pytest.raises(ValueError, match="finite"):
        test(np.array([1.0, math.nan]), np.ones(5))

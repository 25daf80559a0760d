"""Weights summed up once."""

from __future__ import annotations

import numpy as np
import pytest
from tests.measure.fix.proposing import proposed


def test_weights_of_an_object() -> None:
    text = """
        import numpy as np
        import torch

        class Sampler:
            def __init__(self, counts, rng):
                self.p = counts / counts.sum()
                self.n_items = len(counts)
                self.rng = rng

            def draw(self, n):
                return self.rng.choice(self.n_items, size=n, p=self.p)
    """
    (new,) = proposed(text, "choice", "HST020", "weights-once")
    assert (
        "self.p = counts / counts.sum()\n        self.cdf = np.cumsum(self.p)\n        self.cdf /= self.cdf[-1]\n"
        in new
    )
    assert 'return self.cdf.searchsorted(self.rng.random(n), side="right")' in new
    assert proposed(new, "searchsorted", "HST020", "weights-once") == []


def test_weights_of_the_file_and_a_table_of_items() -> None:
    text = """
        import numpy as np

        weights = np.load("weights.npy")
        for step in range(100):
            picked = np.random.choice(names, 5, p=weights)
    """
    (new,) = proposed(text, "choice", "HST020", "weights-once")
    assert "cdf = np.cumsum(weights)\ncdf /= cdf[-1]\nfor step" in new
    assert 'picked = names[cdf.searchsorted(np.random.random(5), side="right")]' in new


def test_choices_of_the_standard_library() -> None:
    text = """
        import random

        def run(rows):
            weights = [row.weight for row in rows]
            while True:
                batch = random.choices(rows, weights=weights, k=8)
    """
    (new,) = proposed(text, "choices", "HST020", "weights-once")
    assert (
        new.startswith("from itertools import accumulate\n")
        or "import random\nfrom itertools import accumulate\n" in new
    )
    assert "    cum_weights = list(accumulate(weights))\n    while True:\n" in new
    assert "random.choices(rows, cum_weights=cum_weights, k=8)" in new


def test_draws_are_the_same() -> None:
    p = np.random.default_rng(1).random(100)
    p /= p.sum()
    cdf = np.cumsum(p)
    cdf /= cdf[-1]
    drawn = cdf.searchsorted(np.random.default_rng(7).random(50), side="right")
    assert np.array_equal(np.random.default_rng(7).choice(100, size=50, p=p), drawn)


@pytest.mark.parametrize(
    "body",
    [
        "    p = update(p)\n    x = rng.choice(n, size=4, p=p)\n",
        "    w = fresh()\n    x = rng.choice(n, size=4, p=w)\n",
        "    x = rng.choice(n, size=4, replace=False, p=p)\n",
        "    x = rng.choice(n, size=4)\n",
        "    x = rng.choice(n, size=4, p=p)\n    p[x] = 0.5\n",
        "    x = rng.choice(n, size=4, p=p)\n    np.put(p, x, 0.5)\n",
        "    x = rng.choice(n, size=4, p=p)\n    rng.shuffle(p)\n",
        "    x = rng.choice(n, size=4, p=p)\n    np.add.at(p, x, 1)\n",
        "    x = rng.choice(n, size=4, p=p)\n    np.clip(p, 0, 1, p)\n",
        "    x = rng.choice(n, size=4, p=p)\n    anneal(p)\n",
        "    x = rng.choice(n, size=4, p=p)\n    w = p\n    w[x] = 0\n",
    ],
)
def test_nothing_for_weights_that_change(body: str) -> None:
    text = f"import numpy as np\np = np.load('p')\nfor step in range(9):\n{body}"
    assert proposed(text, "choice", "HST020", "weights-once") == []


def test_weights_that_are_only_read() -> None:
    body = "    x = rng.choice(n, size=4, p=p)\n    seen += p[x]\n    print(len(p), p.max(), p.shape, p * 2 > 1)\n"
    text = f"import numpy as np\np = np.load('p')\nfor step in range(9):\n{body}"
    assert proposed(text, "choice", "HST020", "weights-once")


def test_nothing_for_priorities_that_an_update_changes() -> None:
    text = """
        import numpy as np

        class Replay:
            def __init__(self, size, rng):
                self.size, self.rng = size, rng
                self.prios = np.ones(size) / size

            def sample(self, k):
                return self.rng.choice(self.size, size=k, p=self.prios)

            def update(self, idx, error):
                self.prios[idx] = error
    """
    assert proposed(text.replace("prios[idx]", "errors"), "choice", "HST020", "weights-once")
    assert not proposed(text, "choice", "HST020", "weights-once")
    assert not proposed(text.replace("[idx] =", "[:] ="), "choice", "HST020", "weights-once")

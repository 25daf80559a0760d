"""Whether two programs compute the same, from what their runs noted."""

from __future__ import annotations

import numpy as np
import pytest

from torchtriage.measure.verify.agreement import Answer, agreement, read_answers


def training(
    *,
    lr: float = 0.1,
    decay: float = 0.0,
    scale: float = 1.0,
    accumulate: bool = False,
    skip: int = -1,
    rounding: float = 0.0,
    seed: int = 0,
    data_seed: int = 0,
    n: int = 8,
) -> tuple[Answer, ...]:
    """Train a linear layer by hand, as a program does that notes its first steps."""
    rng, noise = np.random.default_rng(data_seed), np.random.default_rng(seed)
    weight, events = np.random.default_rng(5).normal(size=16) * 0.1, []
    gradient = np.zeros(16)
    for step in range(n):
        x = rng.normal(size=(32, 16))
        error = scale * (x @ weight) - x.sum(1)
        loss = float((error**2).mean()) * (1 + rounding * noise.normal())
        new = 2 * scale * (error[:, None] * x).mean(0) * (1 + rounding * noise.normal(size=16))
        gradient = gradient + new if accumulate else new
        update = -lr * (gradient + decay * weight) if step != skip else np.zeros(16)
        weight = weight + update
        events += [("loss", [], [loss]), ("gradients", [16], gradient), ("update", [16], update)]
    return noted(*events)


def noted(*events) -> tuple[Answer, ...]:
    return read_answers(
        {
            "epsilon": 1.2e-7,
            "events": [
                {
                    "kind": kind,
                    "tensors": [
                        {"shape": shape, "values": None if values is None else [float(value) for value in values]}
                    ],
                }
                for kind, shape, values in events
            ],
        }
    )


def test_equal_runs_are_equal():
    agrees = agreement([training(), training()], [training(), training()])
    assert (agrees.of, agrees.status, agrees.n, agrees.worst, agrees.own) == ("steps", "same", 16, 0.0, 0.0)


def test_rounding_is_no_difference():
    agrees = agreement([training()] * 2, [training(rounding=1e-6, seed=seed) for seed in (1, 2)])
    assert agrees.status == "same"
    assert 0 < agrees.worst < 1e-4


@pytest.mark.parametrize(
    ("wrong", "first"),
    [
        ({"lr": 0.01}, "update 1"),
        ({"lr": 0.102}, "update 1"),
        ({"decay": 0.5}, "update 1"),
        ({"scale": 1.03}, "gradients 1"),
        ({"accumulate": True}, "gradients 2"),
        ({"skip": 5}, "update 6"),
        ({"data_seed": 1}, "gradients 1"),
    ],
)
def test_what_is_wrong_is_found_where_it_first_shows(wrong, first):
    differs = agreement([training()] * 2, [training(**wrong)] * 2)
    assert (differs.status, differs.first) == ("differ", first)
    assert differs.own == 0


def test_an_update_made_of_rounding_says_nothing():
    def step(noise: float) -> tuple[Answer, ...]:
        tensors = [("gradients", [0.5, 0.5], [noise] * 2), ("update", [0.1, 0.1], [0.1 * np.sign(noise)] * 2)]
        events = [
            {"kind": kind, "tensors": [{"shape": [2], "values": one}, {"shape": [2], "values": other}]}
            for kind, one, other in tensors
        ]
        return read_answers({"epsilon": 0.0, "events": events})

    assert agreement([step(1e-9)], [step(-1e-9)]).status == "same"
    assert agreement([step(0.01)], [step(-0.01)]).first == "gradients 1"


def test_programs_without_a_seed_may_differ_as_their_own_runs_do():
    before = [training(data_seed=seed) for seed in range(5)]
    after = [training(data_seed=seed) for seed in range(5, 10)]
    assert agreement(before, after).status == "within its own spread"
    slower = [training(data_seed=seed, lr=0.01) for seed in range(5, 10)]
    assert agreement(before, slower).status == "differ"


def test_a_gradient_that_is_missing_differs():
    with_none = noted(("loss", [], [1.0]), ("gradients", [2], None))
    differs = agreement([noted(("loss", [], [1.0]), ("gradients", [2], [0.1, 0.2]))], [with_none])
    assert (differs.status, differs.reason) == ("differ", "gradients are missing in one program")


def test_a_batch_in_one_piece_or_in_two_has_the_same_gradients():
    halves = noted(("loss", [], [0.5]), ("loss", [], [0.25]), ("gradients", [1], [0.2]), ("update", [1], [0.1]))
    whole = noted(("loss", [], [0.75]), ("gradients", [1], [0.2]), ("update", [1], [0.1]))
    assert agreement([halves], [whole]).status == "same"


def test_steps_after_another_number_of_losses_differ():
    often = noted(("loss", [], [1.0]), ("update", [1], [0.1]))
    twice = noted(("loss", [], [1.0]), ("gradients", [1], [0.1]), ("update", [1], [0.1]))
    assert agreement([often], [twice]).reason == "one continues with update, the other with gradients"


def test_an_optimizer_written_out_in_one_script_leaves_the_losses():
    written_out = noted(("loss", [], [1.0]), ("loss", [], [0.5]))
    library = noted(("loss", [], [1.0]), ("gradients", [1], [0.1]), ("update", [1], [0.1]), ("loss", [], [0.5]))
    assert agreement([written_out], [library]).of == "losses"
    assert agreement([written_out], [library]).status == "same"
    wrong = noted(("loss", [], [1.0]), ("gradients", [1], [0.1]), ("update", [1], [0.1]), ("loss", [], [0.4]))
    assert agreement([written_out], [wrong]).first == "loss 2"


def test_a_value_that_became_nan_differs():
    whole, broken = noted(("loss", [], [1.0])), noted(("loss", [], [float("nan")]))
    assert agreement([whole], [broken]).reason == "some values are not finite in only one program"


def test_values_that_are_not_finite_prove_nothing():
    broken = noted(*[("loss", [], [float("nan")])] * 2)
    agrees = agreement([broken] * 2, [broken] * 2)
    assert (agrees.status, agrees.n, agrees.reason) == ("not compared", 0, "none of the values are finite")
    later = noted(("loss", [], [1.0]), ("loss", [], [float("nan")]))
    assert (agreement([later], [later]).status, agreement([later], [later]).n) == ("same", 1)


def test_answers_that_hold_no_values_are_not_called_infinite():
    nothing_found = noted(("output", [0, 4], None))
    agrees = agreement([nothing_found] * 2, [nothing_found] * 2)
    assert (agrees.status, agrees.n, agrees.reason) == ("not compared", 0, "the first outputs hold no values")


def test_outputs_speak_where_nothing_trains():
    side, other = noted(("output", [2], [1.0, 2.0])), noted(("output", [2], [1.03, 2.06]))
    assert agreement([side], [side]).of == "outputs"
    assert agreement([side], [other]).status == "differ"
    assert agreement([side], [noted(("output", [2], [1.0, 2.00001]))]).status == "same"


def test_outputs_of_other_shapes_are_not_compared():
    side, other = noted(("output", [64], [1.0] * 16)), noted(("output", [8], [1.0] * 8))
    agrees = agreement([side], [other])
    assert (agrees.status, agrees.first) == ("not compared", "")
    assert "differently" in agrees.reason


def test_programs_that_note_nothing_are_not_called_alike():
    assert agreement([()], [()]).status == "not compared"


def test_fewer_steps_are_other_results():
    differs = agreement([training()] * 2, [training(n=3)] * 2)
    assert (differs.status, differs.n, differs.first) == ("differ", 7, "gradients 4")
    assert differs.reason == "16 of the first gradients and updates before, 6 after"
    assert agreement([training(n=3)] * 2, [training()] * 2).status == "differ"


def test_a_program_that_was_ended_may_have_noted_less():
    assert agreement([training()] * 2, [training(n=3)] * 2, (True, False)).n == 6
    assert agreement([training(n=3)] * 2, [training()] * 2, (False, True)).status == "same"
    assert agreement([training(n=3)] * 2, [training()] * 2, (True, False)).status == "differ"


def test_runs_of_one_program_may_be_of_other_lengths():
    assert agreement([training(), training(n=3)], [training(n=3)] * 2).status == "same"


@pytest.mark.parametrize(
    ("n_before", "n_after", "status"),
    [((3, 5), (4, 4), "same"), ((3, 4), (8, 8), "same"), ((3, 3), (5, 6), "same"), ((3, 3), (5, 5), "differ")],
)
def test_only_lengths_that_repeat_themselves_are_held_against_the_other_program(n_before, n_after, status):
    before, after = ([training(n=n) for n in side] for side in (n_before, n_after))
    assert agreement(before, after).status == status


def test_models_that_are_called_less_often_are_not_compared():
    often = noted(*[("output", [2], [1.0, 2.0])] * 8)
    agrees = agreement([often], [often[:2]])
    assert (agrees.of, agrees.status) == ("outputs", "not compared")
    assert agrees.reason == "the models are called a different number of times: 8 of the first outputs before, 2 after"

"""Whether two programs print the same numbers."""

from __future__ import annotations

import random

import pytest

from torchtriage.measure.verify.printed_agreement import LINES_DIFFER, printed_agreement, with_printed
from torchtriage.measure.verify.result import PrintedAgreement, ResultAgreement

TRAINING = [f"step {step} loss {2.5 - 0.05 * step:.4f} 0.{step} s" for step in range(0, 40, 10)]


def output(*lines: str) -> str:
    return "".join(f"{line}\n" for line in lines)


def compared(before: list[str], after: list[str], **options) -> PrintedAgreement:
    return printed_agreement([output(*before)] * 3, [output(*after)] * 3, **options)


def test_the_same_numbers_agree():
    assert compared(TRAINING, TRAINING) == PrintedAgreement("same", 4)


def test_times_may_differ_even_if_each_program_repeats_its_own():
    faster = [line.replace(" s", "1 s") for line in TRAINING]
    assert compared(TRAINING, faster).status == "same"
    assert compared(["37 ticks, 12 over budget, effort 0.5"], ["37 ticks, 0 over budget, effort 0.5"]).n == 1


def test_a_number_that_differs_is_named_with_its_line():
    wrong = [*TRAINING[:2], TRAINING[2].replace("1.5000", "1.1000"), TRAINING[3]]
    assert compared(TRAINING, wrong) == PrintedAgreement("differ", 2, "line 3", "loss 1.1 instead of 1.5")


def test_the_last_digit_is_rounding():
    assert compared(["score 0.31"], ["score 0.32"], trains=False).status == "same"
    assert compared(["score 0.3100"], ["score 0.3200"], trains=False).status == "differ"
    assert compared(["correct 93"], ["correct 92"], trains=False).n == 1
    assert compared(["correct 93"], ["correct 80"], trains=False).status == "differ"


def test_rounding_grows_while_something_trains():
    apart = [f"step {step} loss {(2.5 - 0.05 * step) * (1 + 0.002 * step):.4f}" for step in range(0, 40, 10)]
    training = [line.rsplit(" ", 2)[0] for line in TRAINING]
    assert compared(training, apart).status == "same"
    assert compared(training, apart, trains=False).first == "line 2"


def test_a_narrow_type_rounds_more():
    assert compared(["score 0.500"], ["score 0.507"], trains=False).status == "differ"
    assert compared(["score 0.500"], ["score 0.507"], trains=False, epsilon=2**-8).status == "same"


def test_what_differs_between_runs_of_one_program_is_not_compared():
    before = [output(f"reward {reward}", "loss 0.5") for reward in (0.5, 0.9, 0.1)]
    after = [output(f"reward {reward}", "loss 0.5") for reward in (7.5, 3.9, 9.1)]
    assert printed_agreement(before, after) == PrintedAgreement("same", 1)


def test_only_as_far_as_the_shorter_goes():
    assert compared(TRAINING, TRAINING[:2]) == PrintedAgreement("same", 2)
    assert compared(TRAINING[:2], [*TRAINING, "final 0.5"]).status == "same"
    assert printed_agreement([output(*TRAINING[:3]), output(*TRAINING)], [output(*TRAINING)] * 2).n == 3


@pytest.mark.parametrize(
    "after",
    [
        ["loss 0.5", "accuracy 0.75", "accuracy 0.25", "samples [0.25, 0.5]"],
        ["accuracy 0.5", "loss 0.5", "accuracy 0.75", "accuracy 0.25", "samples [0.25, 0.5]"],
        ["step 7 loss 0.5", "accuracy 0.75", "samples [0.25, 0.5]"],
        ["loss 0.5", "top accuracy 0.75", "samples [0.25, 0.5]"],
    ],
)
def test_other_lines_are_not_compared_and_no_difference(after):
    assert compared(["loss 0.5", "accuracy 0.75", "samples [0.25, 0.5]"], after).reason == LINES_DIFFER


def test_another_order_is_no_difference():
    scores = ["score 0.5", "score 0.75", "score 0.25"]
    assert compared(scores, scores[::-1]) == PrintedAgreement("not compared", 1, reason=LINES_DIFFER)
    assert compared(scores, ["score 0.5", "score 0.95", "score 0.05"]).status == "differ"
    rounded = ["score 0.25001", "score 0.75001", "score 0.5"]
    assert compared([f"{score} 0.5" for score in scores], [f"{score} 0.5" for score in rounded]).reason == LINES_DIFFER
    assert compared(["best [3, 1, 7]"], ["best [7, 1, 3]"]).reason == LINES_DIFFER


def test_lines_are_paired_by_their_counters():
    often = [f"[{step}/40] loss {1 / (1 + step):.4f}" for step in range(1, 40)]
    rarely = often[9::10]
    assert compared(often, rarely) == PrintedAgreement("not compared", 3, reason=LINES_DIFFER)


def test_a_number_that_is_not_finite_on_one_side_differs():
    assert compared(["loss 0.5"], ["loss nan"]).reason == "loss nan instead of 0.5"
    assert compared(["loss nan", "a 0.5"], ["loss nan", "a 0.5"]).n == 1
    assert compared(["loss nan"] * 9, ["loss nan"] * 9).status == "not compared"


def test_rounding_itself_is_not_compared():
    assert compared(["loss 2e-6", "a 0.5"], ["loss 5e-6", "a 0.5"]).status == "same"


def test_norms_of_gradients_are_left_to_the_gradients():
    assert compared(["loss 0.5, grad norm 1.5"], ["loss 0.5, grad norm 2.5"]).n == 1
    assert compared(["grad norm 1.5"], ["grad norm 2.5"], trains=False).status == "differ"


def test_no_output_is_too_odd():
    words = [
        "#",
        "~",
        "1.",
        "nan",
        "-inf",
        "3/4",
        "[",
        "]",
        "step",
        "\r",
        "|",
        "10%|#",
        "0x1f",
        ",",
        ":",
        "e",
        "٣",
        "\x1b[1m",
    ]
    rng = random.Random(0)
    for _ in range(300):
        lines = [" ".join(rng.choices(words, k=rng.randrange(8))) for _ in range(10)]
        assert compared(lines, lines).status != "differ"
        compared(lines, rng.sample(lines, len(lines)))


def test_few_whole_numbers_prove_nothing():
    assert compared(["parameters: 4096"], ["parameters: 4096"]).status == "not compared"
    assert compared(["ids [5, 17, 2, 8, 90, 4, 7, 1]"], ["ids [5, 17, 2, 8, 90, 4, 7, 1]"]).status == "same"
    assert compared(["no numbers"], ["no numbers"]).status == "not compared"


# -- with what else was compared -------------------------------------------------------------------

AGREE = ResultAgreement("steps", "same", 16, 0.0, 0.0)
NOTHING = ResultAgreement("outputs", "not compared", 0, None, None, "outputs have other shapes")
DIFFER = PrintedAgreement("differ", 2, "line 3", "loss 1.1 instead of 1.5")


def test_printed_numbers_judge_where_nothing_else_can():
    judged = with_printed(NOTHING, PrintedAgreement("same", 5))
    assert (judged.of, judged.status, judged.n) == ("printed", "same", 5)
    assert judged.reason == NOTHING.reason
    assert with_printed(NOTHING, PrintedAgreement("not compared", 0)).status == "not compared"
    assert with_printed(NOTHING, DIFFER).first == "line 3"


def test_printed_numbers_that_differ_are_other_results_though_gradients_agree():
    judged = with_printed(AGREE, DIFFER)
    assert (judged.of, judged.status, judged.n, judged.first) == ("printed", "differ", 3, "line 3")
    assert judged.reason == "loss 1.1 instead of 1.5, though the first steps agree"
    assert with_printed(AGREE, PrintedAgreement("same", 5)).of == "steps"


def test_where_gradients_differ_first_they_say_where():
    gradients = ResultAgreement("steps", "differ", 3, 0.5, 0.0, first="gradients 2")
    judged = with_printed(gradients, DIFFER)
    assert (judged.of, judged.first, judged.printed) == ("steps", "gradients 2", DIFFER)

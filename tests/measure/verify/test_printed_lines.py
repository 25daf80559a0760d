"""Which numbers of an output say what a program computes."""

from __future__ import annotations

import time

import pytest

from torchtriage.measure.verify.printed_lines import read_lines


def numbers(text: str) -> list[float]:
    return [number.value for line in read_lines(f"{text}\n") for number in line.numbers if not number.counts]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("loss 0.25", [0.25]),
        ("loss: 2.5e-3, accuracy: 93.1%", [0.0025, 93.1]),
        ("loss=-.5 grad_norm=1,234.5", [-0.5, 1234.5]),
        ("spread [1.5, -0.25, 1.]", [1.5, -0.25, 1.0]),
        ("{'loss': 0.5, 'mean reward': 12}", [0.5, 12]),
        ("93 of 100 correct", [93, 100]),
        ("mean 0.5 min 0.1 max 0.9", [0.5, 0.1, 0.9]),
        ("weights in [0.5, 0.75]", [0.5, 0.75]),
        ("recall per class [0.5, 0.25]", [0.5, 0.25]),
        ("eval loss 0.5 evaluation 0.25 evals 0.75", [0.5, 0.25, 0.75]),
        ("eval_accuracy: 0.9, Finished: loss=0.5, forward loss 0.25", [0.9, 0.5, 0.25]),
        ("load balance loss 0.5, cached score 0.25, GPU accuracy 0.75", [0.5, 0.25, 0.75]),
        ("error rate 0.5 success rate 0.25", [0.5, 0.25]),
        ("0.5 accuracy on cpu", [0.5]),
        ("cached mAP 0.5, forward KL 0.25, GPU psnr 30.5, done dice 0.75", [0.5, 0.25, 30.5, 0.75]),
        ("Score cpu 0.5, hit rate 0.25, true positive rate 0.75", [0.5, 0.25, 0.75]),
        ("F1 0.5, cached f1_macro: 0.25, Finished: score=0.75", [0.5, 0.25, 0.75]),
    ],
)
def test_results_are_read(text, values):
    assert numbers(text) == values


@pytest.mark.parametrize(
    "text",
    [
        "took 0.2 s",
        "0.2s per step",
        "12.5 ms/iter",
        "1200 tokens/s",
        "frames/s 70.2",
        "64 images per second",
        "{'train_runtime': 12.5, 'train_samples_per_second': 80}",
        "elapsed: 4",
        "peak memory 120",
        "allocated 3.5 GiB",
        "2026-11-24 18:52:10,123",
        "[00:12<01:30]",
        "pid 4242",
        "listening on port 8080",
        "saved /tmp/run17/model-3.pt",
        "saved runs/17/model.pt",
        "<object at 0x7f3a12>",
        "at 3fa9c21d",
        "torch 2.9.1",
        "http://127.0.0.1:8000/9",
        "37 over budget",
        "3 epochs in 0.4",
        "forward calls 40",
        "latency p50=0.004",
        "1.9x faster",
        "max diff 0.3",
        "eval time 3.2",
        "evaluation took 12 s, 3.5 s per eval",
        "eval 1200/s",
        "evals 40, evaluations: 30",
        "40 evals, 30 evaluations",
        "eval loss time 3.2",
        "frame rate 60.5",
        "throughput score 120.5, fps score: 60.5",
        "time to accuracy 12.5",
        "time: f 0.9",
        "GPU 0.9, mean forward 0.4, forward mean 0.4, backward pass 0.8, cpu usage 80.5, rate 3.5",
        "cache hit rate 0.9",
        "learning on gpu 3",
        "W1124 19:01:52.568000 11081 torch/convert_frame.py:1994] [1/8] limit (8)",
        "USDT:2026 11510:11510 Handler.cpp:52] start 3",
        "train.py:12: UserWarning: 3 things\n  scale(x, 0.5)",
        "\r 10%|#   | 1/10 [00:01<00:09,  9.5it/s, loss=0.5]",
    ],
)
def test_what_the_machine_and_the_moment_print_is_left_out(text):
    assert numbers(text) == []


def test_long_lines_take_no_time():
    begun = time.process_time()
    assert list(read_lines("a1" * 500_000 + "\n" + "x/" * 500_000 + "\n" + "1" * 1_000_000 + "\n")) is not None
    assert len(list(read_lines("step 1 loss 0.5 grad 1.25 lr 1e-3\n" * 10_000))) == 10_000
    assert time.process_time() - begun < 10


def test_names_with_digits_are_words():
    (line,) = read_lines("conv1 of resnet50 at 224x224: top5 0.5\n")
    assert [number.value for number in line.numbers] == [0.5]


@pytest.mark.parametrize(
    "text", ["step 20 loss 0.5", "Epoch [20/20] loss=0.5", "20 steps, loss 0.5", "batch: 20 | 0.5"]
)
def test_counters_are_text(text):
    (line,) = read_lines(f"{text}\n")
    assert set(line.counters) == {20.0}
    assert numbers(text) == [0.5]


def test_a_line_that_was_cut_off_is_left_out():
    assert [line.place for line in read_lines("loss 1.5\nloss 2.5\nloss 0.")] == [1, 2]


def test_columns_have_their_titles():
    (line,) = read_lines("epoch  train_loss  time\n1  0.5  3.0\n")
    assert [number.value for number in line.numbers] == [1.0, 0.5]


def test_the_last_digit_is_as_printed():
    (line,) = read_lines("a 0.25 b 3 c 1.5e-3 d 2. e 7,000\n")
    assert [number.digit for number in line.numbers] == pytest.approx([0.01, 1, 1e-4, 0, 1])

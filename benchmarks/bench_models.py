"""What ``torchtriage bench`` says, held against what is known: order, ties, timing; six models.

    python benchmarks/bench_models.py order --reruns 20    # planted slowdowns, is the order true?
    python benchmarks/bench_models.py timer                # beside torch.utils.benchmark
    python benchmarks/bench_models.py models               # the table of docs/bench-measured.md

Needs torch; ``models`` needs transformers and diffusers, whose models get random weights.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

HERE = Path(__file__)
PAGE = HERE.parents[1] / "docs" / "bench-measured.md"

# -- planted slowdowns: what a backend takes times a known factor ------------------------------

FACTORS = {"planted_a": 1.0, "planted_b": 1.0, "planted_102": 1.02, "planted_105": 1.05, "planted_112": 1.12}


def planted() -> Any:
    """Return a model of about 10 ms on one core; its backends only wait."""
    import torch

    class Blocks(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(512, 512) / 22)

        def forward(self, x: Any) -> Any:
            for _ in range(4):
                x = torch.nn.functional.gelu(x @ self.weight)
            return x

    return Blocks(), torch.randn(128, 512)


def _slow(factor: float) -> Callable[..., Any]:
    """Return a backend whose graphs take ``factor`` times as long, whatever disturbs them."""

    def backend(graph: Any, _inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            begun = time.perf_counter_ns()
            out = graph.forward(*args)
            until = begun + factor * (time.perf_counter_ns() - begun)
            while time.perf_counter_ns() < until:
                pass
            return out

        return run

    return backend


def _register() -> None:
    import torch

    known = torch._dynamo.list_backends(exclude_tags=())
    for name, factor in FACTORS.items():
        if name not in known:
            torch._dynamo.register_backend(_slow(factor), name=name)


if "torch" in sys.modules:  # a session has imported it before its target
    _register()


def order(reruns: int) -> int:
    """Rerun one benchmark and count pairs whose order or tie is not what was planted."""
    wrong_runs = 0
    for at in range(reruns):
        begun = time.monotonic()
        result = _bench("planted", "--modes", "", "--backends", ",".join(FACTORS), "--threads", "1")
        found = {frozenset((one["faster"], one["slower"])): one for one in result["comparisons"]}
        wrong = []
        for one, other in combinations(FACTORS, 2):
            told = found[frozenset((f"backend {one}", f"backend {other}"))]
            true = FACTORS[other] / FACTORS[one]
            right = told["tie"] if true < 1.0499 else (not told["tie"] and told["faster"] == f"backend {one}")
            if not right:
                wrong.append(f"{one} {other}: {told['ratio']} ({told['low']}-{told['high']})")
        wrong_runs += bool(wrong)
        rounds, took_s = result["n_rounds"], time.monotonic() - begun
        noise = result["noise"]["status"]
        say = "all pairs right" if not wrong else f"WRONG {'; '.join(wrong)}"
        print(f"{at + 1:3}  {rounds} rounds, {took_s:.0f} s, {noise}: {say}", flush=True)
    print(f"{reruns - wrong_runs} of {reruns} reruns have every pair right")
    return int(wrong_runs > 0)


def _bench(name: str, *options: str) -> Any:
    """Run the command on a function of this file in a folder of its own; return its document."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "torchtriage", "bench", f"{HERE}:{name}", *options]
        done = subprocess.run([*command, "--out", f"{folder}/bench", "--json"], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


# -- beside torch.utils.benchmark --------------------------------------------------------------


def small() -> Any:
    """Return a step of some tens of microseconds."""
    import torch

    return torch.nn.Linear(64, 64), torch.randn(8, 64)


def middle() -> Any:
    """Return a step of about a millisecond."""
    import torch

    return torch.nn.Sequential(torch.nn.Linear(768, 768), torch.nn.GELU()), torch.randn(64, 768)


def timer(turns: int = 15) -> int:
    """Time the same callables by both, in turns in one process; print how far they are apart."""
    import torch
    from torch.utils.benchmark import Timer

    from torchtriage.core.isolate.session_main import ModelSession

    worst = 0.0
    for function in (small, middle, planted):
        session = ModelSession()
        way = {"mode": "eager", "backend": "", "dynamic": None}
        session.open(f"{HERE}:{function.__name__}", way, False, "", 1, None, "")
        session.warm_up(0.5)
        theirs = Timer("run()", globals={"run": session.run}, num_threads=1)
        theirs.blocked_autorange(min_run_time=0.2)
        own_s, p50_s, other_s = [], [], []
        for _ in range(turns):
            other_s.append(theirs.blocked_autorange(min_run_time=0.1).median)
            times = session.block(max(round(0.1 / min(other_s)), 1), True)["ns"]
            own_s.append(statistics.fmean(times) / 1e9)
            p50_s.append(statistics.median(times) / 1e9)
        # theirs are means of many runs, so the means are compared; the best turn of each, as both
        # hold what others on the machine took
        apart, p50 = (min(one) / min(other_s) - 1 for one in (own_s, p50_s))
        worst = max(worst, abs(apart))
        mean_us = min(other_s) * 1e6
        print(f"{function.__name__:8} {mean_us:8.2f} µs  ours {apart:+.2%} (P50 {p50:+.2%})")
    print(f"beside torch.utils.benchmark of torch {torch.__version__}")
    return int(worst > 0.02)


# -- six models --------------------------------------------------------------------------------


def resnet(batch_size: int = 4) -> Any:
    """Return a ResNet of 18 layers on images of 112 pixels."""
    import torch
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(layer_type="basic", depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512])
    return ResNetForImageClassification(config), torch.randn(batch_size, 3, 112, 112)


def vit(batch_size: int = 4) -> Any:
    """Return a vision transformer of 6 layers on images of 112 pixels."""
    import torch
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=384, num_hidden_layers=6, num_attention_heads=6, intermediate_size=1536, image_size=112
    )
    return ViTForImageClassification(config), torch.randn(batch_size, 3, 112, 112)


def unet(batch_size: int = 1) -> Any:
    """Return the denoiser of a small diffusion model, 64 pixels."""
    import torch
    from diffusers import UNet2DModel

    model = UNet2DModel(
        sample_size=64,
        block_out_channels=(64, 128, 128),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D", "UpBlock2D"),
    )
    inputs = {"sample": torch.randn(batch_size, 3, 64, 64), "timestep": torch.tensor([10])}
    return model, {**inputs, "return_dict": False}


def bert(batch_size: int = 4) -> Any:
    """Return an encoder of 4 layers, 128 tokens."""
    import torch
    from transformers import BertConfig, BertModel

    config = BertConfig(hidden_size=384, num_hidden_layers=4, num_attention_heads=6, intermediate_size=1536)
    ids = torch.randint(0, config.vocab_size, (batch_size, 128))
    return BertModel(config), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def gpt2(batch_size: int = 2) -> Any:
    """Return a language model of 4 layers reading a prompt of 128 tokens."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_embd=384, n_layer=4, n_head=6, vocab_size=8192, use_cache=False)
    return GPT2LMHeadModel(config), torch.randint(0, 8192, (batch_size, 128))


def llama(batch_size: int = 1) -> Any:
    """Return a language model of 4 layers at one token: the step of decoding, without a cache."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        intermediate_size=1376,
        vocab_size=8192,
        use_cache=False,
    )
    return LlamaForCausalLM(config), torch.randint(0, 8192, (batch_size, 1))


MODELS = ("resnet", "vit", "unet", "bert", "gpt2", "llama")
BEGIN, END = "<!-- table: benchmarks/bench_models.py models -->", "<!-- /table -->"


def models(names: list[str], kept: Path, options: list[str]) -> int:
    """Benchmark each model and write the table into docs/bench-measured.md; goes on where it stopped."""
    from torchtriage.report import formats

    kept.mkdir(parents=True, exist_ok=True)
    results = {}
    for name in names:
        document = kept / f"{name}.json"
        if not document.exists():
            print(f"{name} ...", flush=True)
            command = [sys.executable, "-m", "torchtriage", "bench", f"{HERE}:{name}", *options]
            subprocess.run([*command, "--out", str(kept / name), "--json", "-o", str(document)], check=True)
        results[name] = formats.decode(document.read_bytes(), "torchtriage-bench/1")
    text = table(results)
    print(text)
    page = PAGE.read_text(encoding="utf-8")
    marked = f"{BEGIN}\n\n{text}\n\n{END}"
    new = re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: marked, page, flags=re.DOTALL)
    PAGE.write_text(new, encoding="utf-8")
    return 0


def table(results: dict[str, Any]) -> str:
    """Return the Markdown table of all models, and what it was measured on."""
    from torchtriage.report.documents import bench as words

    lines = ["| model | " + " | ".join(words.COLUMNS) + " |", "|:--|:--" + "|--:" * (len(words.COLUMNS) - 1) + "|"]
    for name, result in results.items():
        chosen = next((one.setting for one in result.advice if one.need == "latency"), "")
        for at, row in enumerate(result.rows):
            cells = list(words.cells(row))
            if row.label == chosen:
                cells[0] = f"**{cells[0]}**"
            lines.append(f"| {name if at == 0 else ''} | {' | '.join(cells)} |")
    facts = dict(next(iter(results.values())).facts)
    noise = {result.noise.status for result in results.values()}
    said = f"torch {facts['torch']}, {facts.get('cpu', '')}, {facts['threads']} threads"
    rounds = sorted({result.n_rounds for result in results.values()})
    took = f"{rounds[0]} to {rounds[-1]} rounds" if len(rounds) > 1 else f"{rounds[0]} rounds"
    lines += ["", f"Bold: what is advised for latency. {said}; {took}; the machine was {' or '.join(sorted(noise))}."]
    failed = [
        f"- {name}, {row.label}: {words.failure(row)}"
        for name, result in results.items()
        for row in result.rows
        if row.failure
    ]
    return "\n".join([*lines, *([""] if failed else []), *failed])


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("order", "timer", "models"))
    parser.add_argument("--reruns", type=int, default=20)
    parser.add_argument("--only", default=",".join(MODELS), help="models, between commas")
    parser.add_argument("--kept", type=Path, default=Path(tempfile.gettempdir()) / "bench-models")
    given, options = parser.parse_known_args()
    if given.what == "order":
        return order(given.reruns)
    if given.what == "timer":
        return timer()
    return models(given.only.split(","), given.kept, options)


if __name__ == "__main__":
    sys.exit(main())

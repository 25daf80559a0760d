"""Measures a reviewer on labelled windows: how many of its verdicts are right.

::

    python benchmarks/review.py benchmark --windows 200                      # the offline reviewer
    python benchmarks/review.py benchmark --windows 200 --model NAME --base-url http://localhost:8000/v1

Windows are drawn from split ``test``, half of them faulty. A reviewer gets their evidence as ``torchtriage review``
gives it, without the learned detector's line. Prints one JSON object: of the windows with a verdict, how many are
rightly called faulty or not, and with which fault; how many have none, by the reason; how many lines were cited;
tokens. The key of an endpoint comes from ``OPENAI_API_KEY``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
from collections import Counter
from pathlib import Path

from torchtriage.learn.dataset.recordings import dataset_items
from torchtriage.learn.review.llm_reviewer import OPENAI_URL, Endpoint, Limits, Llm
from torchtriage.learn.review.reviewer import NONE, Reviewer, silent
from torchtriage.learn.review.rule_reviewer import Offline
from torchtriage_benchmark.training.active_learning import Findings
from torchtriage_benchmark.training.labels import recorded_labels


def main() -> None:
    """Print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--windows", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model")
    parser.add_argument("--base-url", default=OPENAI_URL)
    parser.add_argument("--max-reply-tokens", type=int, default=1500)
    given = parser.parse_args()
    reviewer: Reviewer = Offline()
    if given.model:
        endpoint = Endpoint(given.model, given.base_url, os.environ.get("OPENAI_API_KEY", ""))
        reviewer = Llm(endpoint, limits=Limits(max_reply_tokens=given.max_reply_tokens))
    items = {item.id: item for item in dataset_items(given.folder) if item.about["split"] == "test"}
    labels = recorded_labels(list(items.values()))
    chance = random.Random(given.seed)
    places = [(key, at, code) for key in items for at, code in enumerate(labels[key])]
    faulty, healthy = ([place for place in places if (place[2] != NONE) == wanted] for wanted in (True, False))
    half = given.windows // 2
    drawn = sorted(chance.sample(faulty, min(half, len(faulty))) + chance.sample(healthy, min(half, len(healthy))))
    known = Findings()
    evidence = [known.of(items[key], [at])[0] for key, at, _ in drawn]
    outcomes = reviewer.review_all(evidence, silent)
    pairs = zip(drawn, outcomes, strict=True)
    judged = [(code, outcome.review) for (_, _, code), outcome in pairs if outcome.review is not None]
    named = [(code, review.code) for code, review in judged if NONE not in (code, review.code)]
    print(
        json.dumps(
            {
                "reviewer": reviewer.name,
                "windows": len(drawn),
                "with_verdict": len(judged),
                "faulty": sum(code != NONE for code, _ in judged),
                "faulty_called_faulty": len(named),
                "healthy": sum(code == NONE for code, _ in judged),
                "healthy_called_healthy": sum(code == review.code == NONE for code, review in judged),
                "fault_right": sum(code == said for code, said in named),
                "lines_cited": sum(len(review.why) + len(review.against) for _, review in judged),
                "no_verdict": Counter(outcome.reason[:80] for outcome in outcomes if outcome.review is None),
                "prompt_tokens": sum(outcome.prompt_tokens for outcome in outcomes),
                "reply_tokens": sum(outcome.reply_tokens for outcome in outcomes),
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()

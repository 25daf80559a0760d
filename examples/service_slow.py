"""Inference service: a thread takes requests off a queue and answers them in batches.

Usage (needs torch)::

    python service_slow.py
"""

import queue
import random
import statistics
import threading
import time
from concurrent.futures import Future

import torch
from torch import nn

REQUESTS = 1200
MAX_BATCH = 8
MAX_LENGTH = 128
VOCABULARY = 1000
Request = tuple[list[int], "Future[float]"]


class Classifier(nn.Module):
    """How positive a text is, from 0 to 1."""

    def __init__(self, dim: int = 128, depth: int = 3) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, dim, padding_idx=0)
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(dim),
                nn.Linear(dim, 2 * dim),
                nn.GELU(),
                nn.Dropout(0.1),
                nn.Linear(2 * dim, dim),
                nn.Dropout(0.1),
            )
            for _ in range(depth)
        )
        self.head = nn.Linear(dim, 1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return one number per text of token ids, int64[batch, length]."""
        present = (tokens != 0).unsqueeze(-1)
        x = self.token(tokens)
        for layer in self.layers:
            x = x + layer(x)
        mean = (x * present).sum(dim=1) / present.sum(dim=1)
        return torch.sigmoid(self.head(mean)).squeeze(-1)


def pad(texts: list[list[int]]) -> torch.Tensor:
    """Return texts as int64[texts, length], short ones filled up with zeros."""
    length = max(len(text) for text in texts)
    return torch.tensor([text + [0] * (length - len(text)) for text in texts])


class Server(threading.Thread):
    """Answers the requests of a queue until it finds None in it."""

    def __init__(self, model: nn.Module, requests: "queue.Queue[Request | None]") -> None:
        super().__init__()
        self.model = model
        self.requests = requests
        self.batch_ms: list[float] = []

    def next_batch(self) -> list[Request]:
        """Wait for a request and take up to seven more that are waiting already."""
        batch: list[Request] = []
        while len(batch) < MAX_BATCH:
            try:
                request = self.requests.get(block=not batch)
            except queue.Empty:
                break
            if request is None:
                self.requests.put(None)
                break
            batch.append(request)
        return batch

    @torch.inference_mode()
    def run(self) -> None:
        """Serve."""
        while batch := self.next_batch():
            begin = time.perf_counter()
            tokens = pad([text for text, _ in batch])
            for answer, (_, future) in zip(self.model(tokens).tolist(), batch, strict=True):
                future.set_result(answer)
            self.batch_ms.append((time.perf_counter() - begin) * 1e3)


def main() -> None:
    """Send random texts to the service and wait for all answers."""
    rng = random.Random(0)
    requests: queue.Queue[Request | None] = queue.Queue()
    server = Server(Classifier(), requests)
    server.start()
    answers: list[Future[float]] = []
    for _ in range(REQUESTS):
        text = [rng.randrange(1, VOCABULARY) for _ in range(rng.randrange(4, MAX_LENGTH))]
        answers.append(Future())
        requests.put((text, answers[-1]))
        time.sleep(rng.expovariate(4000))
    requests.put(None)
    print(f"mean answer: {statistics.mean(future.result() for future in answers):.4f}")
    server.join()
    print(f"mean step: {statistics.mean(server.batch_ms[5:]):.2f} ms")


if __name__ == "__main__":
    torch.manual_seed(0)
    main()

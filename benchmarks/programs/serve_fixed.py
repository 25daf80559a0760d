"""A toy inference service: client threads post documents, one engine thread groups
them into batches and answers through futures."""
import queue
import threading
import time
from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass, field

import torch
from torch import nn


@dataclass
class Settings:
    vocab: int = 4000
    width: int = 160
    layers: int = 3
    labels: int = 20
    length: int = 40
    clients: int = 6
    rounds: int = 300
    max_batch: int = 16
    max_wait: float = 0.012


@dataclass
class Request:
    tokens: torch.Tensor
    reply: Future = field(default_factory=Future)
    born: float = field(default_factory=time.monotonic)


class Classifier(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.emb = nn.Embedding(s.vocab, s.width, padding_idx=0)
        layer = nn.TransformerEncoderLayer(s.width, 4, 4 * s.width, 0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, s.layers, enable_nested_tensor=False)
        self.head = nn.Linear(s.width, s.labels)

    def forward(self, tokens):
        h = self.body(self.emb(tokens))
        return self.head(h.mean(1)).softmax(-1)


class Frontend:
    """Holds the inbox and knows who is connected."""

    def __init__(self, settings):
        self.max_batch = settings.max_batch
        self.max_wait = settings.max_wait
        self.inbox = queue.Queue()
        self.lock = threading.Lock()
        self.connected = 0

    def connect(self):
        with self.lock:
            self.connected += 1

    def disconnect(self):
        with self.lock:
            self.connected -= 1

    def submit(self, tokens):
        req = Request(tokens)
        self.inbox.put(req)
        return req.reply

    def take(self):
        batch = [self.inbox.get()]
        deadline = time.monotonic() + self.max_wait
        while len(batch) < min(self.max_batch, self.connected):
            left = deadline - time.monotonic()
            if left <= 0:
                break
            try:
                batch.append(self.inbox.get(timeout=left))
            except queue.Empty:
                break
        return batch


class Engine:
    def __init__(self, settings):
        self.model = Classifier(settings).eval()
        self.sizes = Counter()
        self.latency = 0.0

    @torch.inference_mode()
    def answer(self, batch):
        tokens = torch.stack([r.tokens for r in batch])
        probs = self.model(tokens)
        conf, label = probs.max(-1)
        now = time.monotonic()
        self.sizes[len(batch)] += 1
        for r, c, l in zip(batch, conf.tolist(), label.tolist()):
            self.latency += now - r.born
            r.reply.set_result((l, c))


def client(number, settings, frontend, tallies):
    """Closed loop: the next document is sent when the last one is answered."""
    gen = torch.Generator().manual_seed(100 + number)
    mine = Counter()
    for _ in range(settings.rounds):
        doc = torch.randint(1, settings.vocab, (settings.length,), generator=gen)
        label, conf = frontend.submit(doc).result()
        mine[label] += conf
    tallies[number] = mine
    frontend.disconnect()


def main():
    settings = Settings()
    torch.manual_seed(2)
    frontend, engine = Frontend(settings), Engine(settings)
    tallies = {}
    threads = []
    for k in range(settings.clients):
        frontend.connect()
        threads.append(threading.Thread(target=client, args=(k, settings, frontend, tallies), daemon=True))
    for t in threads:
        t.start()
    total, served, turns = settings.clients * settings.rounds, 0, 0
    t0 = time.perf_counter()
    while served < total:
        batch = frontend.take()
        engine.answer(batch)
        served += len(batch)
        turns += 1
        if turns % 100 == 0:
            print(f"served {served} mean latency {engine.latency / served * 1e3:.2f} ms")
    dt = time.perf_counter() - t0
    for t in threads:
        t.join()
    mass = sum((c for c in tallies.values()), Counter())
    print("sizes", dict(engine.sizes), "top", [(l, round(v, 3)) for l, v in mass.most_common(3)])
    print(f"{total / dt:.1f} requests/s, {dt / turns * 1e3:.3f} ms per step")


if __name__ == "__main__":
    main()

"""Nightly document scoring: a model loop in the main thread, results handed to a writer thread."""
import hashlib
import queue
import random
import struct
import tempfile
import threading

import torch
import torch.nn as nn


class DocEncoder(nn.Module):
    def __init__(self, vocab=4000, dim=128, layers=2, labels=8):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim, padding_idx=0)
        self.rnn = nn.GRU(dim, dim, layers, batch_first=True)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, labels)

    def forward(self, ids):
        h, _ = self.rnn(self.emb(ids))
        return self.head(self.norm(h.mean(1))).softmax(-1)


class ResultWriter(threading.Thread):
    """Encodes finished rows and appends them to the output file."""

    def __init__(self, path):
        super().__init__(daemon=True)
        self.path = path
        self.inbox = queue.Queue()
        self.rows = 0
        self.digest = hashlib.sha1()

    def submit(self, doc_ids, probs):
        self.inbox.put((doc_ids, probs))

    def run(self):
        with open(self.path, "wb") as out:
            while True:
                item = self.inbox.get()
                if item is None:
                    break
                doc_ids, probs = item
                for doc, row in zip(doc_ids, probs):
                    record = struct.pack("<I8H", doc, *(int(p * 65535) for p in row))
                    out.write(record)
                    self.digest.update(record)
                    self.rows += 1

    def close(self):
        self.inbox.put(None)
        self.join()


def corpus(n, seed):
    rng = random.Random(seed)
    for i in range(n):
        length = rng.randint(20, 60)
        yield i, [rng.randint(1, 3999) for _ in range(length)]


def batches(docs, size):
    ids, rows = [], []
    for doc_id, tokens in docs:
        ids.append(doc_id)
        rows.append(tokens)
        if len(rows) == size:
            yield ids, rows
            ids, rows = [], []
    if rows:
        yield ids, rows


def to_tensor(rows):
    width = max(map(len, rows))
    return torch.tensor([r + [0] * (width - len(r)) for r in rows])


def main():
    torch.manual_seed(0)
    model = DocEncoder().eval()
    counts = torch.zeros(8, dtype=torch.long)
    with tempfile.NamedTemporaryFile(suffix=".bin") as tmp:
        writer = ResultWriter(tmp.name)
        writer.start()
        with torch.inference_mode():
            for doc_ids, rows in batches(corpus(6400, seed=5), 128):
                probs = model(to_tensor(rows))
                counts += torch.bincount(probs.argmax(1), minlength=8)
                writer.submit(doc_ids, probs.tolist())
        writer.close()
    print("rows written", writer.rows)
    print("digest", writer.digest.hexdigest()[:12])
    print("label counts", counts.tolist())


if __name__ == "__main__":
    main()

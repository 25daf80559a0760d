"""A toy transcription service: clients enqueue clips, one worker thread runs the acoustic model."""
import queue
import threading
import time

import torch
from torch import nn

ALPHABET = "_ abcdefghijklmnopqrstuvwxyz'"
BLANK = 0


class AcousticModel(nn.Module):
    def __init__(self, n_mels=64, hidden=96):
        super().__init__()
        self.conv = nn.Conv1d(n_mels, hidden, 5, padding=2)
        self.rnn = nn.GRU(hidden, hidden, num_layers=1, bidirectional=True, batch_first=True)
        self.out = nn.Linear(2 * hidden, len(ALPHABET))

    def forward(self, feats):
        x = torch.relu(self.conv(feats.transpose(1, 2))).transpose(1, 2)
        x, _ = self.rnn(x)
        return self.out(x).log_softmax(-1)


def greedy_decode(log_probs, lengths):
    best = log_probs.argmax(dim=-1)
    texts = []
    for seq, n in zip(best, lengths):
        chars, prev = [], BLANK
        for idx in seq[:n]:
            if idx != prev and idx != BLANK:
                chars.append(ALPHABET[idx])
            prev = idx
        texts.append("".join(chars))
    return texts


def edit_distance(a, b):
    row = list(range(len(b) + 1))
    for i, ca in enumerate(a, 1):
        diag, row[0] = row[0], i
        for j, cb in enumerate(b, 1):
            diag, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diag + (ca != cb))
    return row[-1]


class TranscriptionServer:
    def __init__(self, model):
        self.model = model.eval()
        self.requests = queue.Queue()
        self.results = {}
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def submit(self, ticket, feats, lengths):
        self.requests.put((ticket, feats, lengths))

    def _serve(self):
        while True:
            job = self.requests.get()
            if job is None:
                return
            ticket, feats, lengths = job
            with torch.inference_mode():
                log_probs = self.model(feats)
            self.results[ticket] = greedy_decode(log_probs, lengths)

    def wait_for(self, ticket):
        while ticket not in self.results:
            time.sleep(0.05)
        return self.results.pop(ticket)

    def close(self):
        self.requests.put(None)
        self.thread.join()


def call_centre(n_batches, batch, frames, n_mels, seed):
    g = torch.Generator().manual_seed(seed)
    basis = torch.randn(len(ALPHABET), n_mels, generator=g)
    for n in range(n_batches):
        symbols = torch.randint(0, len(ALPHABET), (batch, frames // 6), generator=g)
        feats = basis[symbols].repeat_interleave(6, dim=1)
        feats = feats + 0.5 * torch.randn(feats.shape, generator=g)
        lengths = torch.randint(feats.size(1) // 2, feats.size(1) + 1, (batch,), generator=g).tolist()
        refs = ["".join(ALPHABET[s] for s in row[: n // 6] if s != BLANK)
                for row, n in zip(symbols.tolist(), lengths)]
        yield n, feats, lengths, refs


def main():
    torch.manual_seed(2)
    server = TranscriptionServer(AcousticModel())
    errors = chars = 0
    for ticket, feats, lengths, refs in call_centre(n_batches=100, batch=8, frames=240, n_mels=64, seed=9):
        server.submit(ticket, feats, lengths)
        hyps = server.wait_for(ticket)
        if ticket % 20 == 0:
            for hyp, ref in zip(hyps, refs):
                errors += edit_distance(hyp, ref)
                chars += len(ref)
            print(f"request {ticket:3d}  audited CER {errors / chars:.4f}  e.g. {hyps[0][:28]!r}")
    server.close()
    print(f"{chars} audited characters, CER {errors / chars:.4f}")


if __name__ == "__main__":
    main()

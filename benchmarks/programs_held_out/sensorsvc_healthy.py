"""Anomaly scoring of sensor windows as they arrive; windows come at the sensors' own pace."""
import collections
import queue
import random
import threading
import time

import torch
import torch.nn as nn

CHANNELS, WINDOW, ARRIVALS, PERIOD = 6, 64, 150, 0.030


class Autoencoder(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.enc = nn.GRU(CHANNELS, hidden, batch_first=True)
        self.cell = nn.GRUCell(CHANNELS, hidden)
        self.out = nn.Linear(hidden, CHANNELS)

    def forward(self, x):
        _, h = self.enc(x)
        h = h[0]
        step = torch.zeros(len(x), CHANNELS)
        rebuilt = []
        for _ in range(12):
            h = self.cell(step, h)
            step = self.out(h)
            rebuilt.append(step)
        return torch.stack(rebuilt[::-1], 1)


class Sensors(threading.Thread):
    """Stands in for the field bus: one window every PERIOD seconds or so."""

    def __init__(self, outbox, seed):
        super().__init__(daemon=True)
        self.outbox = outbox
        self.rng = random.Random(seed)
        self.gen = torch.Generator().manual_seed(seed)

    def run(self):
        due = time.monotonic()
        for i in range(ARRIVALS):
            due += PERIOD * self.rng.uniform(0.6, 1.4)
            time.sleep(max(0.0, due - time.monotonic()))
            window = torch.randn(WINDOW, CHANNELS, generator=self.gen).cumsum(0) * 0.1
            if i % 37 == 20:
                window[-10:] += 4.0
            self.outbox.put((i, time.monotonic(), window))
        self.outbox.put(None)


class AlarmWriter(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True)
        self.inbox = queue.Queue()
        self.alarms = []
        self.lock = threading.Lock()

    def run(self):
        while (entry := self.inbox.get()) is not None:
            with self.lock:
                self.alarms.append(entry)

    def close(self):
        self.inbox.put(None)
        self.join()


class Scorer:
    """Keeps a short history, so that the threshold follows the plant."""

    def __init__(self, model, keep=60):
        self.model = model
        self.recent = collections.deque(maxlen=keep)

    def __call__(self, window):
        x = window.unsqueeze(0)
        rebuilt = self.model(x)
        score = (rebuilt - x[:, -12:]).abs().mean().item()
        limit = self.limit()
        self.recent.append(score)
        return score, score > limit

    def limit(self):
        if len(self.recent) < 15:
            return float("inf")
        ordered = sorted(self.recent)
        middle = ordered[len(ordered) // 2]
        spread = sorted(abs(s - middle) for s in ordered)[len(ordered) // 2]
        return middle + 8.0 * spread


def fit(model, iters=25):
    gen = torch.Generator().manual_seed(70)
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(iters):
        x = torch.randn(32, WINDOW, CHANNELS, generator=gen).cumsum(1) * 0.1
        loss = (model(x) - x[:, -12:]).abs().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


def serve(scorer, inbox, writer):
    delays, scored = [], 0
    with torch.inference_mode():
        while True:
            item = inbox.get()
            if item is None:
                break
            number, born, window = item
            score, alarm = scorer(window)
            if alarm:
                writer.inbox.put((number, round(score, 3)))
            delays.append(time.monotonic() - born)
            scored += 1
    return scored, sorted(delays)


def main():
    torch.manual_seed(71)
    model = Autoencoder()
    print(f"reconstruction loss {fit(model):.3f}")
    inbox = queue.Queue()
    writer = AlarmWriter()
    writer.start()
    sensors = Sensors(inbox, seed=72)
    sensors.start()
    scored, delays = serve(Scorer(model.eval()), inbox, writer)
    sensors.join()
    writer.close()
    print(f"scored {scored} windows, alarms {len(writer.alarms)}: {writer.alarms[:4]}")
    print("median delay under 100 ms:", delays[len(delays) // 2] < 0.1)


if __name__ == "__main__":
    main()

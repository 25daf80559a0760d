"""Speech recognition: a small CTC network learns to write down beeps.

Usage (needs torch)::

    python speech_slow.py
"""

import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

EPOCHS = 34
UTTERANCES = 16
BATCH_SIZE = 8
RATE = 16_000
LETTERS = 12
LENGTH = 10


def spectrogram(letters: torch.Tensor) -> torch.Tensor:
    """Return two seconds of noisy beeps, one pitch per letter, as float32[201, 101]."""
    pitch = (200 + 300 * letters).repeat_interleave(2 * RATE // LENGTH)
    wave = torch.sin(2 * torch.pi * torch.arange(2 * RATE) * pitch / RATE)
    wave += 0.3 * torch.randn(2 * RATE)
    spectrum = torch.stft(
        wave, n_fft=400, hop_length=320, window=torch.hann_window(400), return_complex=True
    )
    return spectrum.abs().add(1e-3).log()


class Beeps(Dataset):
    """Utterances of ten beeps each, with a piece of each masked at random."""

    def __init__(self) -> None:
        self.letters = torch.randint(1, LETTERS + 1, (UTTERANCES, LENGTH))
        self.spectra = [spectrogram(letters) for letters in self.letters]

    def __len__(self) -> int:
        """Return the number of utterances."""
        return UTTERANCES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a spectrogram, float32[201, 101], and its letters, int64[10]."""
        spectrum = self.spectra[index].clone()
        begin = int(torch.randint(90, ()))
        spectrum[:, begin : begin + 10] = 0
        return spectrum, self.letters[index]


class Listener(nn.Module):
    """Convolutions over time and a recurrent layer."""

    def __init__(self, width: int = 320) -> None:
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv1d(201, width, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv1d(width, width, 3, padding=1),
            nn.ReLU(),
        )
        self.memory = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, LETTERS + 1)

    def forward(self, spectrum: torch.Tensor) -> torch.Tensor:
        """Return log-likelihoods of letters, float32[time, batch, 13]."""
        features, _ = self.memory(self.front(spectrum).transpose(1, 2))
        return self.head(features).log_softmax(dim=-1).transpose(0, 1)


def train_epoch(model: Listener, loader: DataLoader, optimizer: torch.optim.Optimizer) -> float:
    """Go through the utterances once, and return the last loss."""
    for spectrum, letters in loader:
        likely = model(spectrum)
        times = torch.full((len(letters),), len(likely))
        lengths = torch.full((len(letters),), LENGTH)
        loss = F.ctc_loss(likely, letters, times, lengths)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def main() -> None:
    """Train for a few epochs and print the loss of each."""
    loader = DataLoader(Beeps(), BATCH_SIZE, shuffle=True, num_workers=2)
    model = Listener()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    step_ms: list[float] = []
    for epoch in range(EPOCHS):
        begin = time.perf_counter()
        loss = train_epoch(model, loader, optimizer)
        step_ms.append((time.perf_counter() - begin) * 1e3 / (UTTERANCES // BATCH_SIZE))
        print(f"epoch {epoch}: loss {loss:.4f}")
    print(f"mean step: {statistics.mean(step_ms[2:]):.2f} ms")


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    main()

import random
from pathlib import Path

import pandas as pd
import torch
import torchaudio
import torchaudio.transforms as T
from torch.utils.data import DataLoader, Dataset

TARGET_SR = 32_000
CLIP_SECONDS = 5


class BirdCalls(Dataset):
    def __init__(self, csv, audio_dir, training=True):
        df = pd.read_csv(csv)
        df = df[df.rating >= 3.0]
        self.classes = sorted(df.primary_label.unique())
        lookup = {c: i for i, c in enumerate(self.classes)}
        self.files = [Path(audio_dir) / f for f in df.filename]
        self.targets = [lookup[c] for c in df.primary_label]
        self.training = training

    def __len__(self):
        return len(self.files)

    def load(self, path):
        wav, sr = torchaudio.load(path)
        wav = wav.mean(dim=0, keepdim=True)
        if sr != TARGET_SR:
            wav = T.Resample(sr, TARGET_SR, lowpass_filter_width=64)(wav)
        return wav

    def crop(self, wav):
        n = TARGET_SR * CLIP_SECONDS
        if wav.shape[1] < n:
            reps = -(-n // wav.shape[1])
            wav = wav.repeat(1, reps)
        start = random.randint(0, wav.shape[1] - n) if self.training else 0
        return wav[:, start:start + n]

    def features(self, wav):
        mel = T.MelSpectrogram(
            sample_rate=TARGET_SR, n_fft=2048, hop_length=512, n_mels=128, f_min=40, f_max=15_000, power=2.0
        )(wav)
        db = T.AmplitudeToDB(top_db=80)(mel)
        return (db - db.mean()) / (db.std() + 1e-6)

    def __getitem__(self, i):
        x = self.features(self.crop(self.load(self.files[i])))
        if self.training and random.random() < 0.5:
            f0 = random.randint(0, 112)
            x[:, f0:f0 + 16] = 0
        return x, self.targets[i]


def loaders(root, fold, batch_size=64, workers=12):
    root = Path(root)
    train = BirdCalls(root / f"folds/train_{fold}.csv", root / "train_audio")
    valid = BirdCalls(root / f"folds/valid_{fold}.csv", root / "train_audio", training=False)
    kw = dict(batch_size=batch_size, num_workers=workers, pin_memory=True, persistent_workers=True)
    return DataLoader(train, shuffle=True, drop_last=True, **kw), DataLoader(valid, **kw)


if __name__ == "__main__":
    tr, va = loaders("/data/birdclef", fold=0)
    x, y = next(iter(tr))
    print(x.shape, y.shape, len(tr), len(va))

from pathlib import Path

import mne
import numpy as np
import pandas as pd
import torch
from scipy.signal import butter, sosfiltfilt
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Recording:
    def __init__(self, path, sfreq=250):
        raw = mne.io.read_raw_gdf(path, preload=True, verbose="error")
        raw.pick("eeg").resample(sfreq, verbose="error")
        self.data = raw.get_data().astype(np.float32) * 1e6
        self.events, self.ids = mne.events_from_annotations(raw, verbose="error")


class EEGWindows(Dataset):
    def __init__(self, root, subjects, window=1000, stride=100, band=(4.0, 38.0), sfreq=250):
        self.recordings, rows = [], []
        for s in subjects:
            for path in sorted(Path(root).glob(f"A{s:02d}*.gdf")):
                rec = Recording(str(path), sfreq)
                r = len(self.recordings)
                self.recordings.append(rec)
                wanted = {rec.ids[str(c)]: c - 769 for c in range(769, 773) if str(c) in rec.ids}
                for onset, _, code in rec.events:
                    if code not in wanted:
                        continue
                    last = min(onset + 4 * sfreq, rec.data.shape[1]) - window
                    for i, start in enumerate(range(onset - sfreq // 2, last + 1, stride)):
                        rows.append((r, start, start + window, wanted[code], i, s))
        self.metadata = pd.DataFrame(
            rows, columns=["recording", "i_start", "i_stop", "target", "i_window_in_trial", "subject"]
        )
        self.sos = butter(4, band, btype="bandpass", fs=sfreq, output="sos")

    def __len__(self):
        return len(self.metadata)

    def __getitem__(self, i):
        row = self.metadata.iloc[i]
        signal = self.recordings[int(row["recording"])].data
        signal = sosfiltfilt(self.sos, signal, axis=-1)
        x = signal[:, int(row["i_start"]):int(row["i_stop"])]
        x = (x - x.mean(axis=1, keepdims=True)) / (x.std(axis=1, keepdims=True) + 1e-6)
        return torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32)), int(row["target"])


class ShallowNet(nn.Module):
    def __init__(self, chans=22, classes=4, filters=40):
        super().__init__()
        self.temporal = nn.Conv2d(1, filters, (1, 25))
        self.spatial = nn.Conv2d(filters, filters, (chans, 1), bias=False)
        self.bn = nn.BatchNorm2d(filters)
        self.pool = nn.AvgPool2d((1, 75), (1, 15))
        self.head = nn.LazyLinear(classes)

    def forward(self, x):
        z = self.bn(self.spatial(self.temporal(x[:, None])))
        z = torch.log(self.pool(z.square()).clamp(min=1e-6))
        return self.head(F.dropout(z, 0.5, self.training).flatten(1))


def main(root="data/bcic_iv_2a", device="cuda", epochs=40):
    kw = dict(batch_size=64, num_workers=8, pin_memory=True, persistent_workers=True)
    train = DataLoader(EEGWindows(root, range(1, 8)), shuffle=True, drop_last=True, **kw)
    valid = DataLoader(EEGWindows(root, (8, 9)), **kw)
    model = ShallowNet().to(device)
    model(torch.zeros(2, 22, 1000, device=device))
    opt = torch.optim.AdamW(model.parameters(), lr=6e-4, weight_decay=0.01)
    for epoch in range(epochs):
        model.train()
        for x, y in train:
            loss = F.cross_entropy(model(x.to(device, non_blocking=True)), y.to(device, non_blocking=True))
            opt.zero_grad()
            loss.backward()
            opt.step()
        model.eval()
        right, n = torch.zeros((), device=device), 0
        with torch.no_grad():
            for x, y in valid:
                right += (model(x.to(device)).argmax(1) == y.to(device)).sum()
                n += len(y)
        print(epoch, f"valid accuracy {right.item() / n:.3f}")


if __name__ == "__main__":
    main()

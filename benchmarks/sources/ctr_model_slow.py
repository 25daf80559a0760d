import numpy as np
import torch
from sklearn.metrics import log_loss, roc_auc_score
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class DeepFM(nn.Module):
    def __init__(self, cardinalities, n_dense, dim=16, hidden=(256, 128)):
        super().__init__()
        offsets = np.concatenate([[0], np.cumsum(cardinalities)[:-1]])
        self.register_buffer("offsets", torch.as_tensor(offsets, dtype=torch.long))
        total = int(sum(cardinalities))
        self.linear = nn.Embedding(total, 1)
        self.embed = nn.Embedding(total, dim)
        nn.init.normal_(self.embed.weight, std=1e-4)
        nn.init.zeros_(self.linear.weight)
        layers, d = [], len(cardinalities) * dim + n_dense
        for h in hidden:
            layers += [nn.Linear(d, h), nn.ReLU(), nn.Dropout(0.1)]
            d = h
        self.mlp = nn.Sequential(*layers, nn.Linear(d, 1))
        self.dense_linear = nn.Linear(n_dense, 1)

    def forward(self, cat, dense):
        idx = cat + self.offsets
        v = self.embed(idx)
        first = self.linear(idx).sum(dim=1) + self.dense_linear(dense)
        fm = 0.5 * (v.sum(dim=1).pow(2) - v.pow(2).sum(dim=1)).sum(dim=1, keepdim=True)
        deep = self.mlp(torch.cat([v.flatten(1), dense], dim=1))
        return (first + fm + deep).squeeze(1)


class Trainer:
    def __init__(self, cardinalities, n_dense, device="cuda", lr=1e-3):
        self.device = device
        self.model = DeepFM(cardinalities, n_dense).to(device)
        self.opt = torch.optim.Adam(self.model.parameters(), lr=lr)

    def fit(self, cat, dense, y, val, batch_size=4096, epochs=5):
        data = TensorDataset(
            torch.as_tensor(cat, dtype=torch.long), torch.as_tensor(dense, dtype=torch.float32),
            torch.as_tensor(y, dtype=torch.float32),
        )
        loader = DataLoader(data, batch_size=batch_size, shuffle=True)
        for epoch in range(epochs):
            self.model.train()
            total = torch.zeros((), device=self.device)
            for c, d, t in loader:
                c, d, t = c.to(self.device), d.to(self.device), t.to(self.device)
                loss = F.binary_cross_entropy_with_logits(self.model(c, d), t)
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
                total += loss.detach()
            auc, ll = self.evaluate(*val)
            print(f"epoch {epoch} loss {total.item() / len(loader):.4f} val auc {auc:.4f} logloss {ll:.4f}")

    @torch.no_grad()
    def predict(self, cat, dense, chunk=65_536):
        self.model.eval()
        out = []
        for s in range(0, len(cat), chunk):
            c = torch.as_tensor(cat[s:s + chunk], dtype=torch.long, device=self.device)
            d = torch.as_tensor(dense[s:s + chunk], dtype=torch.float32, device=self.device)
            out.append(torch.sigmoid(self.model(c, d)))
        return torch.cat(out).cpu().numpy()

    def evaluate(self, cat, dense, y):
        p = self.predict(cat, dense)
        return roc_auc_score(y, p), log_loss(y, p.astype(np.float64))


def encode_columns(df, columns):
    codes, sizes = [], []
    for col in columns:
        values, inv = np.unique(df[col].to_numpy(), return_inverse=True)
        codes.append(inv)
        sizes.append(len(values))
    return np.stack(codes, axis=1), sizes

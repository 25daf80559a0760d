"""What is made of settings alone is made once."""

from tests.measure.fix.proposing import change, proposed


def test_a_mask_becomes_a_buffer():
    before, after = change("""
        import torch
        from torch import nn
        class Attention(nn.Module):
            def __init__(self, n):
                super().__init__()
                self.n = n
                self.q = nn.Linear(n, n)
      +         idx = torch.arange(self.n)
      +         self.register_buffer("mask", idx[None] <= idx[:, None], persistent=False)
            def forward(self, x):
      -         idx = torch.arange(self.n)
      -         mask = idx[None] <= idx[:, None]
                q = self.q(x)
      -         return q.masked_fill(~mask, 0)
      +         return q.masked_fill(~self.mask, 0)
    """)
    assert proposed(before, "mask =", "LCH105", "hoist-to-setup")[0] == after


def test_a_data_set_is_scaled_once():
    before, after = change("""
        from sklearn.preprocessing import StandardScaler
        from torch.utils.data import Dataset
        class Windows(Dataset):
            def __init__(self, series, lookback=72):
                self.series = series
                self.lookback = lookback
      +         self.scaled = StandardScaler().fit_transform(self.series)
            def __getitem__(self, i):
      -         scaled = StandardScaler().fit_transform(self.series)
      -         return scaled[i:i + self.lookback]
      +         return self.scaled[i:i + self.lookback]
    """)
    assert proposed(before, "scaled =", "LCH105", "hoist-to-setup")[0] == after


def test_an_expression_is_compiled_when_the_file_is_loaded():
    before, after = change("""
        import re
      + PATTERN = re.compile(r"[a-z]+")
      +
      +
        def clean(text):
      -     pattern = re.compile(r"[a-z]+")
      -     return pattern.findall(text.lower())
      +     return PATTERN.findall(text.lower())
        for text in open("x").readlines():
            clean(text)
    """)
    assert proposed(before, "pattern =", "HST103", "hoist-to-setup")[0] == after


def test_rays_are_made_once_in_a_trainer():
    before, after = change("""
        import torch
        import numpy as np
        def get_rays(h, w, pose):
            i, j = torch.meshgrid(torch.arange(w), torch.arange(h), indexing="xy")
            dirs = torch.stack([i, j, -torch.ones_like(i)], -1).float()
            return pose[:3, -1].expand(dirs.shape), (dirs[..., None, :] * pose[:3, :3]).sum(-1)
        class Trainer:
            def __init__(self, args):
                self.args = args
                self.h, self.w = args.h, args.w
                self.poses = [torch.eye(4) for _ in range(4)]
                self.images = torch.zeros(4, 3)
      +         rays = [get_rays(self.h, self.w, p) for p in self.poses]
      +         self.rays_o = torch.stack([r[0] for r in rays]).reshape(-1, 3)
      +         self.rays_d = torch.stack([r[1] for r in rays]).reshape(-1, 3)
            def sample(self):
      -         rays = [get_rays(self.h, self.w, p) for p in self.poses]
      -         rays_o = torch.stack([r[0] for r in rays]).reshape(-1, 3)
      -         rays_d = torch.stack([r[1] for r in rays]).reshape(-1, 3)
                target = self.images.reshape(-1, 3)
      -         idx = torch.randperm(rays_o.shape[0])[: self.args.n_rays]
      -         return rays_o[idx], rays_d[idx], target[idx]
      +         idx = torch.randperm(self.rays_o.shape[0])[: self.args.n_rays]
      +         return self.rays_o[idx], self.rays_d[idx], target[idx]
            def fit(self):
                for step in range(100):
                    o, d, t = self.sample()
                    self.step(o, d, t)
    """)
    assert proposed(before, "rays =", "LCH105", "hoist-to-setup")[0] == after


def test_rows_are_picked_once_for_a_client():
    before, after = change("""
        import torch
        class Client:
            def __init__(self, cid, owner):
                self.cid, self.owner = cid, owner
      +         self.mine = torch.tensor([i for i in range(len(self.owner)) if self.owner[i] == self.cid])
            def train(self, model, opt):
      -         mine = torch.tensor([i for i in range(len(self.owner)) if self.owner[i] == self.cid])
      -         for sel in mine.split(8):
      +         for sel in self.mine.split(8):
                    loss = model(sel).sum()
                    loss.backward()
                    opt.step()
        def main():
            clients = [Client(i, owner) for i in range(4)]
            for r in range(10):
                for c in clients:
                    c.train(model, opt)
    """)
    assert proposed(before, "mine =", "LCH105", "hoist-to-setup")[0] == after


def test_transforms_are_made_once():
    before, after = change("""
        from torch.utils.data import Dataset
        from torchvision import transforms
        class Pictures(Dataset):
            def __init__(self, files, size):
                self.files, self.size = files, size
      -     def __getitem__(self, i):
      -         crop = transforms.Compose([
      +         self.crop = transforms.Compose([
                    transforms.Resize(self.size),
                    transforms.ToTensor(),
                ])
      -         return crop(load(self.files[i]))
      +     def __getitem__(self, i):
      +         return self.crop(load(self.files[i]))
    """)
    assert proposed(before, "crop =", "HST105", "hoist-to-setup")[0] == after


def test_a_table_of_a_method_becomes_a_buffer():
    before, after = change("""
        import math
        import torch
        from torch import nn
        class Encoder(nn.Module):
            def __init__(self, d, max_len=512):
                super().__init__()
                self.d = d
                self.max_len = max_len
                self.lin = nn.Linear(d, d)
      +         self.register_buffer("pe", self.table(), persistent=False)

            def table(self):
                pos = torch.arange(self.max_len).float()[:, None]
                rate = torch.exp(torch.arange(0, self.d, 2) * (-math.log(10000.0) / self.d))
                pe = torch.zeros(self.max_len, self.d)
                pe[:, 0::2] = torch.sin(pos * rate)
                return pe

            def forward(self, x):
      -         pe = self.table().to(x.device)
      +         pe = self.pe
                return self.lin(x) + pe[: x.shape[1]]
    """)
    assert proposed(before, "pe = self.table", "LCH105", "hoist-to-setup")[0] == after


def test_a_constant_follows_its_module():
    before, after = change("""
        import torch
        from torch import nn
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.lin = nn.Linear(4, 4)
      +         self.register_buffer("values", torch.tensor([0.5, 0.4, 0.3]), persistent=False)
            def forward(self, x):
      -         x = (x - torch.tensor([0.5, 0.4, 0.3], device=x.device)) / 2
      +         x = (x - self.values) / 2
                return self.lin(x)
    """)
    assert proposed(before, "torch.tensor(", "SYN005", "hoist-to-setup")[0] == after


def test_what_changes_later_stays():
    before = """
        import torch
        from torch import nn

        class Attention(nn.Module):
            def __init__(self, n):
                super().__init__()
                self.n = n
            def grow(self):
                self.n += 1
            def forward(self, x):
                mask = torch.tril(torch.ones(self.n, self.n))
                return x * mask
    """
    assert not proposed(before, "mask =", "LCH105", "hoist-to-setup")


def test_what_depends_on_the_input_stays():
    before = """
        import torch
        from torch import nn

        class Attention(nn.Module):
            def __init__(self, n):
                super().__init__()
                self.n = n
            def forward(self, x):
                mask = torch.tril(torch.ones(x.shape[1], self.n))
                return x * mask
    """
    assert not proposed(before, "mask =", "LCH105", "hoist-to-setup")


def test_what_others_set_stays():
    before = """
        import torch
        from torch import nn
        class Net(nn.Module):
            def __init__(self, n, beta):
                super().__init__()
                self.n, self.beta = n, beta
            def forward(self, x):
                ramp = torch.linspace(0, self.beta, self.n)
                return x * ramp
        class Trainer:
            def __init__(self, model):
                self.model = model
            def fit(self, x):
                {}
    """
    for line in ("self.model.beta = 0.5", 'setattr(self.model, "beta", 0.5)', "model.beta = 0.5"):
        assert not proposed(before.format(line), "ramp =", "LCH105", "hoist-to-setup")
    assert proposed(before.format("self.model(x)"), "ramp =", "LCH105", "hoist-to-setup")


def test_a_method_that_another_file_calls():
    before, after = change("""
        import torch
        class Agent:
            def __init__(self, size):
                self.size = size
      +         self.offset = torch.arange(self.size)
            def learn(self, x):
      -         offset = torch.arange(self.size)
      -         return x + offset
      +         return x + self.offset
    """)
    assert proposed(before, "offset =", "LCH105", "hoist-to-setup")[0] == after
    once = before + "agent = Agent(3)\nagent.learn(torch.ones(3))\n"
    assert not proposed(once, "offset =", "LCH105", "hoist-to-setup")

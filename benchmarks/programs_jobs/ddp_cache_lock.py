#OPTS world=4 stack=1 op=SpeechLayer
import fcntl
import tempfile


class FeatureCache:
    """Spectrograms in a file that all ranks of the machine share; whoever misses one adds it."""

    def __init__(self, whole_read_locked):
        self.path = os.path.join(tempfile.gettempdir(), f"features-{os.environ['MASTER_PORT']}.lock")
        self.whole_read_locked = whole_read_locked
        self.index = {}

    @contextlib.contextmanager
    def lock(self):
        with open(self.path, "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(file, fcntl.LOCK_UN)

    def find(self, key):
        return self.index.setdefault(key, len(self.index))

    def decompress(self, row):
        time.sleep(0.0010)
        return torch.full((20, 40), float(row % 5))

    def get_batch(self, keys):
        if self.whole_read_locked:
            with self.lock():
                return torch.stack([self.decompress(self.find(key)) for key in keys])
        with self.lock():
            rows = [self.find(key) for key in keys]
        return torch.stack([self.decompress(row) for row in rows])


class Recognizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(40, 32, 5, padding=2)
        self.proj = nn.Linear(32, 32)
        self.chars = nn.Linear(32, 28)

    def forward(self, x):
        h = F.gelu(self.conv(x.transpose(1, 2))).transpose(1, 2)
        h = SpeechLayer.apply(h, 0.016, 0.032)
        h = SpeechLayer.apply(torch.tanh(self.proj(h)), 0.014, 0.028)
        return self.chars(h).log_softmax(-1)


def train(rank, world, args):
    cache = FeatureCache(whole_read_locked=args.fault)
    model = DDP(Recognizer())
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    ctc = nn.CTCLoss()
    frames, chars = torch.full((4,), 20), torch.full((4,), 6)
    with recording(args, rank) as prof:
        for step in range(args.steps):
            spectrograms = cache.get_batch([(rank, step, i) for i in range(4)])
            targets = torch.randint(1, 28, (4, 6))
            loss = ctc(model(spectrograms).transpose(0, 1), targets, frames, chars)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            opt.step()
            prof.step()
    if rank == 0 and os.path.exists(cache.path):
        os.remove(cache.path)

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class CRF(nn.Module):
    def __init__(self, n_tags):
        super().__init__()
        self.n_tags = n_tags
        self.start = nn.Parameter(torch.randn(n_tags) * 0.1)
        self.end = nn.Parameter(torch.randn(n_tags) * 0.1)
        self.trans = nn.Parameter(torch.randn(n_tags, n_tags) * 0.1)

    def partition(self, feats):
        alpha = self.start + feats[0]
        for feat in feats[1:]:
            nxt = []
            for tag in range(self.n_tags):
                nxt.append(torch.logsumexp(alpha + self.trans[:, tag], dim=0) + feat[tag])
            alpha = torch.stack(nxt)
        return torch.logsumexp(alpha + self.end, dim=0)

    def gold(self, feats, tags):
        n = tags.shape[0]
        score = self.start[tags[0]] + self.end[tags[-1]]
        score = score + feats[torch.arange(n, device=tags.device), tags].sum()
        return score + self.trans[tags[:-1], tags[1:]].sum()

    def neg_log_likelihood(self, feats, tags, lengths):
        losses = []
        for b, n in enumerate(lengths):
            f, t = feats[b, :n], tags[b, :n]
            losses.append(self.partition(f) - self.gold(f, t))
        return torch.stack(losses).mean()

    @torch.no_grad()
    def decode(self, feats, mask):
        """Viterbi over the padded batch."""
        score = self.start + feats[:, 0]
        back = []
        for t in range(1, feats.shape[1]):
            best, arg = (score[:, :, None] + self.trans).max(dim=1)
            score = torch.where(mask[:, t, None], best + feats[:, t], score)
            back.append(arg)
        last = (score + self.end).argmax(dim=1).tolist()
        pointers = torch.stack(back, dim=1).cpu().numpy() if back else None
        paths = []
        for b, n in enumerate(mask.sum(dim=1).tolist()):
            path = [last[b]]
            for t in range(n - 2, -1, -1):
                path.append(int(pointers[b, t, path[-1]]))
            paths.append(path[::-1])
        return paths


class Tagger(nn.Module):
    def __init__(self, vocab, n_tags, emb=100, hidden=200):
        super().__init__()
        self.embed = nn.Embedding(vocab, emb, padding_idx=0)
        self.drop = nn.Dropout(0.5)
        self.rnn = nn.LSTM(emb, hidden // 2, num_layers=2, batch_first=True, bidirectional=True, dropout=0.3)
        self.proj = nn.Linear(hidden, n_tags)
        self.crf = CRF(n_tags)

    def features(self, words, lengths):
        x = self.drop(self.embed(words))
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True, total_length=words.shape[1])
        return self.proj(self.drop(out))

    def forward(self, words, tags, lengths):
        return self.crf.neg_log_likelihood(self.features(words, lengths), tags, lengths)

    def predict(self, words, lengths):
        return self.crf.decode(self.features(words, lengths), words != 0)


def collate(batch):
    lengths = [len(w) for w, _ in batch]
    words = nn.utils.rnn.pad_sequence([torch.as_tensor(w) for w, _ in batch], batch_first=True)
    tags = nn.utils.rnn.pad_sequence([torch.as_tensor(t) for _, t in batch], batch_first=True)
    return words, tags, lengths


def train_epoch(model, loader, opt, device):
    model.train()
    total = torch.zeros((), device=device)
    for words, tags, lengths in loader:
        words, tags = words.to(device, non_blocking=True), tags.to(device, non_blocking=True)
        loss = model(words, tags, lengths)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        total += loss.detach()
    return total.item() / len(loader)


@torch.no_grad()
def evaluate(model, loader, device, score_fn):
    model.eval()
    gold, pred = [], []
    for words, tags, lengths in loader:
        pred += model.predict(words.to(device), lengths)
        gold += [t[:n].tolist() for t, n in zip(tags, lengths)]
    return score_fn(gold, pred)

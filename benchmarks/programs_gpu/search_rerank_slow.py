"""Two-stage search: a small bi-encoder retrieves candidates, a cross-encoder puts them in order."""
import argparse
import zlib

import torch
from transformers import BertConfig, BertForSequenceClassification, BertModel

WORDS = ("the of and to in market price engine water field protein model river signal court law city energy value "
         "growth cell paper night train light stone music garden winter school bridge code letter window").split()
CLS, SEP, PAD, FIRST = 101, 102, 0, 1000


class HashTokenizer:
    """Word-level tokenizer with hashed identifiers, for queries and query/document pairs."""

    def __init__(self, vocab, max_length):
        self.vocab, self.max_length = vocab, max_length
        self.known = {}

    def words(self, text):
        out = []
        for w in text.lower().split():
            if w not in self.known:
                self.known[w] = FIRST % self.vocab + zlib.crc32(w.encode()) % (self.vocab - FIRST % self.vocab)
            out.append(self.known[w])
        return out

    def __call__(self, first, second=None):
        rows, kinds = [], []
        for i, text in enumerate(first):
            a = [CLS % self.vocab] + self.words(text) + [SEP % self.vocab]
            b = self.words(second[i]) + [SEP % self.vocab] if second is not None else []
            rows.append((a + b)[:self.max_length])
            kinds.append(([0] * len(a) + [1] * len(b))[:self.max_length])
        width = self.max_length
        return {
            "input_ids": torch.tensor([r + [PAD] * (width - len(r)) for r in rows]),
            "token_type_ids": torch.tensor([k + [0] * (width - len(k)) for k in kinds]),
            "attention_mask": torch.tensor([[1] * len(r) + [0] * (width - len(r)) for r in rows]),
        }


class SearchService:
    def __init__(self, device, docs, small):
        self.device, self.docs = device, docs
        vocab = 300 if small else 30522
        max_length = 40 if small else 512
        e = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64) if small else dict(
            hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
        r = dict(hidden_size=48, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64) if small else dict(
            hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072)
        dtype = torch.float16 if device.type == "cuda" else torch.float32
        with torch.device(device):
            self.encoder = BertModel(BertConfig(vocab_size=vocab, **e)).to(dtype).eval()
            self.reranker = BertForSequenceClassification(BertConfig(vocab_size=vocab, num_labels=1, **r)).to(dtype).eval()
        self.encoder.to("cpu")
        self.reranker.to("cpu")
        self.index = torch.nn.functional.normalize(
            torch.randn(len(docs), e["hidden_size"], device=device), dim=-1).to(dtype)
        self.query_tok = HashTokenizer(vocab, 16 if small else 32)
        self.pair_tok = HashTokenizer(vocab, max_length)
        self.candidates = 4 if small else 128

    @torch.no_grad()
    def retrieve(self, query):
        self.encoder.to(self.device)
        enc = {k: v.to(self.device) for k, v in self.query_tok([query]).items()}
        vec = self.encoder(**enc).last_hidden_state[:, 0]
        score = torch.nn.functional.normalize(vec, dim=-1) @ self.index.T
        top = score[0].topk(self.candidates).indices.tolist()
        self.encoder.to("cpu")
        return top

    @torch.no_grad()
    def rerank(self, query, ids):
        self.reranker.to(self.device)
        enc = self.pair_tok([query] * len(ids), [self.docs[i] for i in ids])
        enc = {k: v.to(self.device) for k, v in enc.items()}
        score = self.reranker(**enc).logits[:, 0].float().cpu()
        self.reranker.to("cpu")
        return [(ids[j], score[j].item()) for j in score.argsort(descending=True).tolist()]

    def search(self, query, n=10):
        return self.rerank(query, self.retrieve(query))[:n]


def write_texts(n, low, high, gen):
    texts = []
    for length in torch.randint(low, high, (n,), generator=gen).tolist():
        picks = torch.randint(len(WORDS), (length,), generator=gen).tolist()
        texts.append(" ".join(WORDS[p] for p in picks))
    return texts


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--small", action="store_true")
    small = ap.parse_args().small
    torch.manual_seed(11)
    gen = torch.Generator().manual_seed(5)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    docs = write_texts(20 if small else 5000, *((5, 20) if small else (60, 160)), gen)
    queries = write_texts(4 if small else 80, 3, 12, gen)
    service = SearchService(device, docs, small)
    for query in queries:
        # STEP
        hits = service.search(query)
        best, score = hits[0]
    print(f"{len(queries)} queries; last: {query!r} -> document {best} ({score:.4f})")


if __name__ == "__main__":
    main()

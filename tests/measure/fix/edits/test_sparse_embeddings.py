"""Tables whose rows are looked up get gradients of those rows alone."""

from tests.measure.fix.proposing import proposed, source

BEFORE = """
    import torch
    from torch import nn


    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.user = nn.Embedding(2_000_000, 32)
            self.tag = nn.Embedding(40, 8)  # small

        def forward(self, users, tags):
            return self.user(users).sum(1) + self.tag(tags).sum(1)


    model = Model()
    opt = torch.optim.Adagrad(model.parameters(), lr=0.1)
    for users, tags in batches:
        loss = model(users, tags).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
"""
AFTER = BEFORE.replace("2_000_000, 32)", "2_000_000, 32, sparse=True)")


def test_a_large_table_has_sparse_gradients():
    assert proposed(BEFORE, "self.user = ", "OPT047", "sparse-embeddings") == [source(AFTER)]


def test_it_is_made_sparse_once():
    assert not proposed(AFTER, "self.user = ", "OPT047", "sparse-embeddings")


def test_what_decays_or_moves_all_rows_stays_dense():
    for optimizer in ("Adam(model.parameters()", "SGD(model.parameters(), momentum=0.9", "AdamW(model.parameters()"):
        text = BEFORE.replace("Adagrad(model.parameters()", optimizer)
        assert not proposed(text, "self.user = ", "OPT047", "sparse-embeddings")
    decays = BEFORE.replace("lr=0.1", "lr=0.1, weight_decay=0.01")
    assert not proposed(decays, "self.user = ", "OPT047", "sparse-embeddings")

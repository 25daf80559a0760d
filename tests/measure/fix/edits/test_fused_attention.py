from measure.fix.proposing import proposals, proposed

EDIT = "fused-attention"


def test_attention_over_several_statements():
    before = """
        import math
        import torch
        import torch.nn.functional as F

        class Attention(torch.nn.Module):
            def forward(self, q, k, v, mask):
                scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
                scores = scores.masked_fill(mask == 0, float("-inf"))
                weights = F.softmax(scores, dim=-1)
                weights = self.drop(weights)
                out = torch.matmul(weights, v)
                return self.proj(out)
    """
    (after,) = proposed(before, "scores = torch", "KRN025", EDIT)
    assert after.endswith("""
    def forward(self, q, k, v, mask):
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask != 0, \
dropout_p=self.drop.p if self.training else 0.0, scale=1 / math.sqrt(q.size(-1)))
        return self.proj(out)
""")
    assert not proposed(after, "out = F", "KRN025", EDIT)


def test_attention_in_one_expression():
    before = """
        import torch

        def attend(q, k, v, scale, bias):
            return ((q @ k.mT) * scale + bias).softmax(-1) @ v
    """
    (after,) = proposed(before, "return", "HST114", EDIT)
    assert "return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)" in after


def test_attention_with_batched_products():
    before = """
        import torch
        from torch import nn

        class Pool(nn.Module):
            def forward(self, x):
                q, k, v = self.q(x), self.k(x), self.v(x)
                att = torch.bmm(q * 0.125, k.transpose(1, 2))
                att = torch.softmax(att, dim=-1)
                return torch.bmm(att, v)
    """
    (after,) = proposed(before, "att = torch.softmax", "KRN025", EDIT)
    assert "        return torch.nn.functional.scaled_dot_product_attention(q * 0.125, k, v, scale=1.0)\n" in after


def test_weights_that_nobody_uses():
    before = """
        from torch import nn

        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.attn = nn.MultiheadAttention(8, 2)

            def forward(self, x):
                return x + self.attn(x, x, x)[0]
    """
    (after,) = proposed(before, "return x", "KRN025", EDIT)
    assert "self.attn(x, x, x, need_weights=False)[0]" in after


def test_nothing_where_weights_are_returned():
    before = """
        import torch

        def attend(q, k, v):
            weights = torch.softmax(q @ k.transpose(-2, -1), dim=-1)
            return weights @ v, weights

        def shown(q, k, v):
            weights = torch.softmax(q @ k.transpose(-2, -1), dim=-1)
            out = weights @ v
            print(weights.max())
            return out
    """
    assert not proposed(before, 4, "KRN025", EDIT)
    assert not proposed(before, "print(", "KRN025", EDIT)


def test_a_finite_fill_is_said_to_change():
    before = """
        import torch

        def attend(q, k, v, mask):
            scores = q @ k.transpose(-2, -1)
            scores = scores.masked_fill(mask == 0, -1e9)
            weights = torch.softmax(scores, dim=-1)
            return weights @ v
    """
    assert proposals(before, "return", "KRN025", EDIT)[0].changes
    assert not proposals(before.replace("-1e9", 'float("-inf")'), "return", "KRN025", EDIT)[0].changes

import pytest
from measure.fix.proposing import proposals, proposed, source

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


def same(body, *, given="x, mask=None"):
    """Check that a module's only proposal computes the same."""
    torch = pytest.importorskip("torch")
    before = f"""
import math
import torch
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads, self.scale = 4, 8**-0.5
        self.qkv = nn.Linear(32, 96)
        self.softmax = nn.Softmax(dim=2)

    def forward(self, {given}):
        b, n, _ = x.shape
        q, k, v = (part.view(b, n, self.heads, 8) for part in self.qkv(x).chunk(3, dim=-1))
{source(body).replace(chr(10), chr(10) + " " * 8).join((" " * 8, ""))}
"""
    texts = [before, *proposed(before, "return out", "HST114", "fused-attention")]
    assert len(texts) == 2
    assert "scaled_dot_product_attention" in texts[1]
    x, mask = torch.rand(2, 5, 32), torch.tril(torch.ones(5, 5))
    for hidden in (None, mask):
        results = []
        for text in texts:
            space: dict[str, object] = {}
            exec(text, space)
            torch.manual_seed(0)
            results.append(space["Attention"]()(x, hidden))
        assert torch.allclose(*results, atol=1e-6)
    return texts[1]


@pytest.mark.parametrize(
    "body",
    [
        """
        attn = torch.einsum('bihd,bjhd->bijh', q, k) * self.scale
        attn = attn.softmax(dim=2)
        out = torch.einsum('bijh,bjhd->bihd', attn, v)
        return out
        """,
        """
        attn = torch.einsum("bihd,bjhd->bijh", q, k)
        attn = attn * self.scale
        attn = self.softmax(attn)
        out = torch.einsum("bijh,bjhd->bihd", attn, v).reshape(b, n, -1)
        return out
        """,
        """
        scores = torch.einsum("blhe,bshe->bhls", q, k)
        if mask is not None:
            scores.masked_fill_(mask == 0, -math.inf)
        A = torch.softmax(self.scale * scores, dim=-1)
        out = torch.einsum("bhls,bshd->blhd", A, v)
        return out
        """,
        """
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        sim = torch.einsum('b h i d, b h j d -> b h i j', q * self.scale, k)
        if mask is not None:
            n_seen = mask.sum()
            sim = sim.masked_fill(mask == 0, float("-inf"))
        attn = sim.softmax(dim=-1)
        out = torch.matmul(attn, v)
        return out
        """,
        """
        scores = torch.einsum("blhe,bshe->bhls", (q, k))
        if self.scale:
            scores = scores * self.scale
        attn = scores.softmax(-1)
        out = torch.einsum("bhls,bshd->blhd", (attn, v))
        return out
        """,
        """
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        attn = q @ k.transpose(-2, -1)
        attn.mul_(self.scale)
        attn = torch.softmax(attn, -1)
        out = attn @ v
        return out
        """,
        """
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        attn = q @ k.transpose(-2, -1) / math.sqrt(8)
        if mask is not None:
            attn += mask
        attn = F.softmax(attn, dim=-1)
        out = attn @ v
        return out
        """,
    ],
)
def test_attention_as_others_write_it(body):
    same(body)


def test_scores_that_are_hidden_in_a_way_that_cannot_be_seen_stay():
    before = """
        import torch

        def attend(q, k, v, mask):
            scores = q @ k.transpose(-2, -1)
            {}
            out = torch.softmax(scores, dim=-1) @ v
            return out
    """
    for hides in ("hide(scores)", "scores = hide(scores)", "scores[mask] = -1e9", "scores.clamp_(max=5)"):
        assert not proposed(before.format(hides), "return out", "HST114", "fused-attention")


@pytest.mark.parametrize(
    "body",
    [
        # what the operator would read is another value there, or gone
        """
        scores = q @ k.mT
        if mask is not None:
            scores = scores.masked_fill(mask == 0, float("-inf"))
            mask = None
        out = torch.softmax(scores, dim=-1) @ v
        """,
        """
        scores = q @ k.mT
        q = q + 1
        out = torch.softmax(scores, dim=-1) @ v
        """,
        """
        scores = q @ k.mT
        if mask is None:
            k.mul_(2)
        out = torch.softmax(scores, dim=-1) @ v
        """,
        """
        scores = q @ k.mT
        scores = scores.masked_fill(scores > 5, float("-inf"))
        out = torch.softmax(scores, dim=-1) @ v
        """,
        """
        scores = q @ k.mT
        q = torch.softmax(scores, dim=-1)
        out = q @ q
        """,
        """
        for part in parts:
            if part > 0:
                q = q + scores
            scores = q @ k.mT
            out = torch.softmax(scores, dim=-1) @ v
        """,
        # what is filled in is high, or unknown
        """
        scores = (q @ k.mT).masked_fill(mask, 1e9)
        out = torch.softmax(scores, dim=-1) @ v
        """,
        """
        scores = (q @ k.mT).masked_fill(mask, torch.finfo(q.dtype).max)
        out = torch.softmax(scores, dim=-1) @ v
        """,
        """
        scores = (q @ k.mT).masked_fill(mask, mask_value)
        out = torch.softmax(scores, dim=-1) @ v
        """,
        # factors that are tensors
        """
        scores = dim_weights * (q @ k.mT)
        out = torch.softmax(scores, dim=-1) @ v
        """,
        """
        scores = q @ k.mT
        if mask is not None:
            scores = scores * scale_of_each
        out = torch.softmax(scores, dim=-1) @ v
        """,
        """
        logit_scale = torch.clamp(parts, max=4.6).exp()
        out = torch.softmax(q @ k.mT * logit_scale, dim=-1) @ v
        """,
    ],
)
def test_attention_of_which_one_operator_would_make_another_stays(body):
    lines = source(body).replace("\n", "\n    ")
    text = f"import torch\n\n\ndef attend(q, k, v, mask, parts, dim_weights, scale_of_each):\n    {lines}return out\n"
    assert not proposed(text, "out = ", "HST114", "fused-attention")


@pytest.mark.parametrize(
    "low", ["-1e9", "-torch.finfo(q.dtype).max", "torch.finfo(q.dtype).min", "-torch.inf", "LOW", "lowest"]
)
@pytest.mark.parametrize(
    "factor", ["/ math.sqrt(d)", "* scale", "* q.shape[-1] ** -0.5", "* settled", "/ self.head_dim ** 0.5"]
)
def test_numbers_of_attention(low, factor):
    before = f"""
        import math
        import torch

        LOW = float("-inf")

        class Attention:
            def __init__(self, width):
                self.head_dim = width

            def attend(self, q, k, v, mask, scale):
                settled = scale or 0.125
                d = q.size(-1)
                lowest = torch.finfo(q.dtype).min
                scores = (q @ k.mT {factor}).masked_fill(mask, {low})
                out = torch.softmax(scores, dim=-1) @ v
                return out
    """
    (after,) = proposed(before, "out = ", "HST114", "fused-attention")
    assert "attn_mask=~mask, scale=" in after

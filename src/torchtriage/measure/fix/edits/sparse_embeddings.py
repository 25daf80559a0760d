"""Give large tables of embeddings sparse gradients, where the optimizer takes them and computes the same."""

from __future__ import annotations

from collections.abc import Iterator

from torchtriage.diagnose.lint.facts import SourceCall
from torchtriage.diagnose.lint.rules.dense_embedding_grad import find
from torchtriage.diagnose.lint.syntax import keyword, literal
from torchtriage.measure.fix.proposal import Proposal, Site
from torchtriage.measure.fix.statements import set_keywords

CODES = frozenset({"OPT047"})
TABLES = ("torch.nn.Embedding", "torch.nn.EmbeddingBag")


def propose(site: Site) -> Iterator[Proposal]:
    """Yield ``sparse=True`` for the tables that are large, all at once."""
    module = site.module
    optimizers = [call for call in module.calls if call.name.startswith("torch.optim.") and call.attr[:1].isupper()]
    if not optimizers or not all(map(_takes_sparse, optimizers)) or "clip_grad" in module.text:
        return
    large = {hit.node for hit in find(module)}
    tables = [call.node for call in module.called(*TABLES) if call.node in large]
    edits = tuple(edit for table in tables for edit in set_keywords(module, table, {"sparse": "True"}))
    yield Proposal(edits, "compute gradients only for the rows that a batch looks up")


def _takes_sparse(call: SourceCall) -> bool:
    """Return whether an optimizer does the same with rows alone: no decay or momentum of the others."""
    options = ("weight_decay", "momentum", "fused", "foreach", "differentiable", "maximize")
    given = [value for name in options if (value := keyword(call.node, name)) is not None]
    return call.attr in ("SGD", "Adagrad") and not any(literal(value) for value in given)

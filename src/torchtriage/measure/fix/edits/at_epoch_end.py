"""What a callback computes of everything so far, with each batch, computed at the end of the epoch."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.edits import SourceEdit, replace_node
from torchtriage.diagnose.lint.syntax import names_in
from torchtriage.diagnose.lint.torch_names import words
from torchtriage.diagnose.lint.work_syntax import parameters
from torchtriage.measure.fix.edits._flow import flow_of
from torchtriage.measure.fix.proposal import Proposal, Site
from torchtriage.measure.fix.statements import bound, insert_before, remove, source

CODES = words("HST106 HST124 HST114 HST020 LCH105")
OF_BATCHES = re.compile(r"(batch|step|iteration)(?=_end$)|(?<=^after_)(batch|step|iteration)$")


def propose(site: Site) -> Iterator[Proposal]:
    """Yield the move of the statement at the line, the last of ``on_batch_end``, into ``on_epoch_end``."""
    module, statement, function = site.module, site.statement, flow_of(site.module).function(site.function)
    if function is None or function.owner is None or function.node.body[-1] is not statement:
        return
    end = function.owner.methods.get(OF_BATCHES.sub("epoch", function.name))
    if end is None or end is function or end.owner is not function.owner or not isinstance(statement, ast.Assign):
        return
    only_here = (parameters(function.node) - parameters(end.node)) | bound(function.node.body)
    targets = {source(module, target) for target in statement.targets}
    if any(isinstance(target, ast.Name) for target in statement.targets) or names_in(statement) & only_here:
        return
    others = [item for method in (function, end) for item in method.node.body if item is not statement]
    if any(source(module, node) in targets for item in others for node in ast.walk(item)):
        return
    if any(source(module, node) in targets for node in ast.walk(statement.value)):
        return  # it goes on from batch to batch
    first = end.node.body[0]
    row = source(module, statement)
    edits: list[SourceEdit | None] = [remove(module, statement)]
    edits.append(replace_node(first, row) if isinstance(first, ast.Pass) else insert_before(module, first, row))  # type: ignore[arg-type]
    if all(edits):
        what = f"compute {', '.join(sorted(targets))} once an epoch, in {end.name}()"
        yield Proposal(tuple(filter(None, edits)), what, "it is known at the end of the epoch alone")

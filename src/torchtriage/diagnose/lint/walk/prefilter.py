"""Which functions are read: those whose text holds something that rules are about."""

from __future__ import annotations

import ast
import re
from itertools import accumulate

from torchtriage.core.names import word_list

_TRIGGERS = (
    *word_list("""
    .item( int( float( bool( oader .step( .any( .all( .cpu( .numpy( .tolist( backward( unique( unique_cons compile(
    DataParallel synchronize( empty_cache( collect( nonzero( masked_select( bincount( repeat_interleave( argwhere(
    zero_grad( clip_grad optim. ptimizer anomaly( environ deterministic_algorithms( profile( time() perf_counter
    monotonic all_reduce( barrier( _object( _object_list( params"] params'] isnan( isfinite( allclose( .double(
    float64 from_numpy( emit_nvtx equal( training_step .sum() _parameters( .parameters( open( fsync( flush( .save(
    save_pretrained( deepcopy( pickle. iterrows( sleep( subprocess. PoolExecutor( num_threads( tracemalloc. Profile()
    hook( use_cache Compose( "max_length" diag( one_hot( svd( eigh inverse( linalg.inv( .generate( okenizer( okenizer.
    .map( next(iter( Trainer( Arguments( cudnn. process_group( FSDP( pin_memory( .add_image .add_figure save_image(
    wandb. sync_dist
    """),
    ".max() ",
    ".min() ",
    " = iter(",
)
"""Text without any of these needs no analysis: no rule speaks about anything else."""

_TOGETHER = (
    (("Conv",), ("BatchNorm",)),
    (("permute(", "memory_format"), ("contiguous(",)),
    (("for ", "while "), ("cat(", "concat", "range(", "odel(", "net(", "coder(", "zip(", "enumerate(")),
    (("debug(",), ("str(", "repr(")),
    (("torch.tensor(",), ("device=",)),
    (
        (").to(", ".cuda(", ".type_as(", ".to("),
        tuple(f"torch.{name}" for name in word_list("zeros( ones( full( arange( tensor( eye( rand empty( linspace(")),
    ),
)
"""The same for texts that hold one of the first and one of the second."""

_WHERE = re.compile(r"where\((?:[^,()]|\((?:[^()]|\([^()]*\))*\))*\)")
"""``torch.where`` with one argument."""

_MASK = re.compile(r"\[[^\[\]\n]*[<>=~]")
"""What may be a selection by condition."""

_COMPUTES = re.compile(
    r"^ *(?:import|from) .*(?<!\w)(?:torch|transformers|sentence_transformers|diffusers)\b", re.MULTILINE
)
_PACKAGED = re.compile(r"^ *from \.", re.MULTILINE)


class Relevance:
    """The text of a file, asked function by function.

    ``alone`` : it is no part of a package, and all of it is read.
    ``trains`` : it holds a step of training. ``folds`` : what a module is built of matters.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.alone = _COMPUTES.search(text) is not None and _PACKAGED.search(text) is None
        self.trains = "backward(" in text or ".step(" in text
        self._embeds = self.trains and "Embedding(" in text
        self.folds = self._embeds or ("BatchNorm" in text and "Conv" in text)
        # where each line starts: the text of a function is looked at without a copy
        lengths = (len(line) + 1 for line in text.split("\n"))
        self._starts = [0, *accumulate(lengths, initial=0)]

    def speaks(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
        """Return whether the text of a function holds anything rules are about."""
        if self.alone:
            return True
        text, find = self.text, self.text.find
        first, end = self._extent(node)
        for word in _TRIGGERS:
            if find(word, first, end) >= 0:
                return True
        for some, others in _TOGETHER:
            if any(find(word, first, end) >= 0 for word in some) and any(
                find(word, first, end) >= 0 for word in others
            ):
                return True
        if self._embeds and find("Embedding(", first, end) >= 0:
            return True
        if find("where(", first, end) >= 0 and _WHERE.search(text, first, end):
            return True
        return _MASK.search(text, first, end) is not None

    def calls_model(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
        """Return whether the text of a function holds a call of something called model."""
        return self.text.find("odel(", *self._extent(node)) >= 0

    def text_of(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> str:
        """Return the text of a definition."""
        first, end = self._extent(node)
        return self.text[first:end]

    def _extent(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> tuple[int, int]:
        """Return where the text of a function begins and ends."""
        starts = self._starts
        last = (node.end_lineno or node.lineno) + 1
        end = starts[last] if last < len(starts) else len(self.text)
        return starts[min(node.lineno, len(starts) - 1)], end

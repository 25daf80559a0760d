"""Activations are kept where they were computed again."""

import pytest
from tests.measure.fix.proposing import proposals, proposed, source

PROGRAM = """
    import torch
    from torch.utils.checkpoint import checkpoint

    model = make(hidden=64)
    {set_up}
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in batches:
        h = {call}  # each block
        loss = h.sum()
        loss.backward()
        opt.step()
"""


@pytest.mark.parametrize(
    ("set_up", "call", "kept_set_up", "kept_call"),
    [
        ("pass", "checkpoint(model.block, x, use_reentrant=False)", "pass", "model.block(x)"),
        ("pass", "checkpoint(lambda y: y + 1, x)", "pass", "(lambda y: y + 1)(x)"),
    ],
)
def test_a_block_is_called_itself(set_up, call, kept_set_up, kept_call):
    before = PROGRAM.format(set_up=set_up, call=call)
    after = PROGRAM.format(set_up=kept_set_up, call=kept_call)
    assert proposed(before, "h = ", "MEM122", "keep-activations") == [source(after)]
    assert "more memory" in proposals(before, "h = ", "MEM122", "keep-activations")[0].changes
    assert not proposed(after, "h = ", "MEM122", "keep-activations")


def test_a_switch_is_taken_out():
    before = """
        from transformers import Trainer, TrainingArguments

        args = TrainingArguments(
            output_dir="out",
            gradient_checkpointing=True,
            disable_tqdm=True,
        )
        Trainer(model=model, args=args).train()
    """
    after = source(before).replace("    gradient_checkpointing=True,\n", "")
    assert proposed(before, "args = ", "MEM122", "keep-activations") == [after]


def test_a_method_that_switches_it_on_is_not_called():
    before = PROGRAM.format(set_up="model.gradient_checkpointing_enable()", call="model(x)")
    after = source(before).replace("model.gradient_checkpointing_enable()\n", "")
    assert proposed(before, "model.grad", "MEM122", "keep-activations") == [after]

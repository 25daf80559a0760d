"""Fixes that are the same whether a trace or the source shows the fault.

They stand below both, so that reading source alone needs none of what reading a trace needs.
"""

from __future__ import annotations

from torchtriage.core.finding import Fix

READ_NOW_AND_THEN = Fix(
    text="Keep the value on the device and read it every N steps.",
    code="""total += loss.detach()          # instead of: total += loss.item()
if step % 50 == 0:
    log(total.item() / 50)
    total.zero_()""",
    link="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html"
    "#avoid-unnecessary-cpu-gpu-synchronization",
)
BUILD_ON_DEVICE = Fix(
    text="Create a constant once and keep it on the device, or let the device fill it; send what changes in one copy"
    " from pinned memory.",
    code="""self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]), persistent=False)
mask = torch.zeros(n, device=x.device)      # not torch.zeros(n).to(x.device)""",
    link="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html"
    "#create-tensors-directly-on-the-target-device",
)
FUSE_OPTIMIZER = Fix(
    text="Use the fused form of the optimizer (or foreach=True).",
    code="optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)",
    link="https://docs.pytorch.org/docs/stable/optim.html#algorithms",
)
AVERAGE_AT_ONCE = Fix(
    text="Update all tensors in one call.",
    code="""from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
ema.update_parameters(model)  # instead of a loop over the parameters""",
    link="https://docs.pytorch.org/docs/stable/optim.html#weight-averaging-swa-and-ema",
)
CLIP_AT_ONCE = Fix(
    text="Clip all gradients in one call.",
    code="torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)",
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html",
)
LEAVE_NORM_ON_DEVICE = Fix(
    text="Leave the norm on the device; read it when you log, not in every step.",
    code="""norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # no error_if_nonfinite
if step % 50 == 0:
    log(norm.item())""",
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html",
)
CHANNELS_LAST = Fix(
    text="Keep weights and activations in the channels_last format.",
    code="""model = model.to(memory_format=torch.channels_last)
x = x.to(memory_format=torch.channels_last)  # once, where the batch is moved""",
    link="https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html",
)

"""Pictures, histograms or figures are made in every step of training.

Looks like: ``writer.add_images``, ``add_histogram``, ``add_figure``, ``wandb.Image``, ``save_image``, ``plt.imshow`` in
    a loop that trains or in ``training_step``; ``wandb.watch(model, log_freq=1)``.
Slow because: each is copied to the host, encoded and written while the device waits: tens of milliseconds.
Fix: make them every few hundred steps.
Quiet when: it is behind ``if step % n``, or the pictures are the result of inference.
Source: Weights & Biases documentation of ``wandb.watch``; TensorBoard documentation.
"""

import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import Fix, Hit, Module, Rule, keyword, text_of

RULE = Rule(
    "HST122", "pictures-in-step", "host", "Figures are rendered in every step", "medium", over=("SYN004", "HST101")
)

FIX = Fix(
    text="Make them every few hundred steps.",
    code="""if step % 500 == 0:
    writer.add_images("inputs", x[:8], step)""",
    link="https://docs.pytorch.org/docs/stable/tensorboard.html",
)

_METHODS = (
    "add_image", "add_images", "add_image_with_boxes", "add_figure", "add_video", "add_embedding", "add_mesh",
    "add_histogram", "add_pr_curve", "add_graph", "add_audio", "log_image", "log_images", "log_figure",
)  # fmt: skip
_FUNCTIONS = re.compile(
    r"^wandb\.(Image|Histogram|Table|Video|Audio|Object3D|Plotly)$|^wandb\.plot\.\w+$|^torchvision\.utils\.save_image$"
    r"|^matplotlib\.pyplot\.(imshow|plot|scatter|hist|imsave|figure|subplots)$|^imageio\.(imwrite|imsave|mimsave)$"
)
OFTEN = 20
"""Steps between two looks at all weights, up to which they are a large share of the time."""


def find(module: Module) -> Iterator[Hit]:
    """Yield pictures of each step of training, the first of each block."""
    lines: set[object] = set()
    for call in [*module.sent(*_METHODS), *(call for call in module.calls if _FUNCTIONS.match(call.name))]:
        if call.context.hot and call.context.trains:
            what = (call.context.function, call.context.loop, call.name.partition(".")[0] or call.attr)
            if what not in lines:
                lines.add(what)
                yield Hit(call.node, f"every step makes this: {text_of(call.node)}", call.attr)
    for call in module.called("wandb.watch"):
        every = keyword(call.node, "log_freq")
        number = module.constant(every, call.context)
        if every is not None and type(number) is int and 0 < number <= OFTEN and not call.context.aside:
            message = f"histograms of all weights and gradients are made every {number} steps"
            yield Hit(every, message, "watch")

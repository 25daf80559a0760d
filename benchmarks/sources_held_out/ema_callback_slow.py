import copy
import logging
from pathlib import Path

import torch
from transformers import TrainerCallback

logger = logging.getLogger(__name__)


class ReferenceEMACallback(TrainerCallback):
    """Keeps `ref = alpha * ref + (1 - alpha) * policy` after every optimizer step.

    The reference is used for the KL term, and optionally for evaluation.
    """

    def __init__(self, ref_model=None, alpha=0.999, eval_with_ref=False, save_every=2000):
        if not 0.0 < alpha < 1.0:
            raise ValueError(f"alpha must be in (0, 1), got {alpha}")
        self.ref_model = ref_model
        self.alpha = alpha
        self.eval_with_ref = eval_with_ref
        self.save_every = save_every
        self._backup = None

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        if self.ref_model is None:
            self.ref_model = copy.deepcopy(model)
        self.ref_model.requires_grad_(False)
        self.ref_model.eval()
        n = sum(p.numel() for p in self.ref_model.parameters())
        logger.info("tracking %.1fM parameters with alpha=%s", n / 1e6, self.alpha)

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        ref = {k: v.cpu() for k, v in self.ref_model.state_dict().items()}
        pol = {k: v.cpu() for k, v in model.state_dict().items()}
        blended = {}
        for name, value in ref.items():
            if value.dtype.is_floating_point:
                blended[name] = self.alpha * value + (1.0 - self.alpha) * pol[name]
            else:
                blended[name] = pol[name].clone()
        self.ref_model.load_state_dict(blended, strict=True)
        if state.global_step % self.save_every == 0 and state.is_world_process_zero:
            out = Path(args.output_dir) / f"ema-{state.global_step}"
            self.ref_model.save_pretrained(out)
        return control

    def _swap_in(self, model):
        self._backup = {k: v.detach().clone() for k, v in model.state_dict().items()}
        model.load_state_dict(self.ref_model.state_dict())

    def _swap_out(self, model):
        if self._backup is not None:
            model.load_state_dict(self._backup)
            self._backup = None

    def on_prediction_step(self, args, state, control, model=None, **kwargs):
        if self.eval_with_ref and self._backup is None and model is not None:
            self._swap_in(model)

    def on_evaluate(self, args, state, control, model=None, metrics=None, **kwargs):
        if self.eval_with_ref and model is not None:
            self._swap_out(model)
        if metrics and "eval_loss" in metrics:
            logger.info("step %d eval loss %.4f", state.global_step, metrics["eval_loss"])

    def on_train_end(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            self.ref_model.save_pretrained(Path(args.output_dir) / "ema-final")

"""LoRA finetuning on one device.

Usage: python lora_finetune_recipe.py --config alpaca.yaml
"""
import argparse
import logging
import time
from functools import partial

import torch
import yaml
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, get_cosine_schedule_with_warmup

from recipes.data import AlpacaDataset, padded_collate

log = logging.getLogger(__name__)


class LoRARecipe:
    def __init__(self, cfg):
        self.cfg = cfg
        self.device = torch.device(cfg["device"])
        self.tokenizer = AutoTokenizer.from_pretrained(cfg["model"])
        base = AutoModelForCausalLM.from_pretrained(
            cfg["model"], torch_dtype=torch.bfloat16, attn_implementation="sdpa"
        )
        peft_cfg = LoraConfig(r=cfg["rank"], lora_alpha=cfg["alpha"], target_modules=["q_proj", "v_proj"])
        self.model = get_peft_model(base, peft_cfg).to(self.device)
        n_train = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        log.info("trainable parameters: %.2fM", n_train / 1e6)

        ds = AlpacaDataset(self.tokenizer, max_len=cfg["max_len"])
        self.loader = DataLoader(
            ds, batch_size=cfg["batch_size"], shuffle=True, num_workers=4, pin_memory=True,
            persistent_workers=True, collate_fn=partial(padded_collate, pad_id=self.tokenizer.pad_token_id),
        )
        self.opt = torch.optim.AdamW(
            [p for p in self.model.parameters() if p.requires_grad], lr=cfg["lr"], fused=True
        )
        self.accum = cfg["gradient_accumulation_steps"]
        total = cfg["epochs"] * len(self.loader) // self.accum
        self.sched = get_cosine_schedule_with_warmup(self.opt, cfg["warmup"], total)
        self.global_step = 0

    def grad_norm(self):
        total = 0.0
        for p in self.model.parameters():
            if p.grad is not None:
                total += p.grad.detach().float().norm(2).item() ** 2
        return total ** 0.5

    def train(self):
        self.model.train()
        for epoch in range(self.cfg["epochs"]):
            pbar = tqdm(total=len(self.loader) // self.accum)
            epoch_loss = torch.zeros((), device=self.device)
            running, t0 = 0.0, time.perf_counter()
            for idx, batch in enumerate(self.loader):
                batch = {k: v.to(self.device, non_blocking=True) for k, v in batch.items()}
                loss = self.model(**batch).loss / self.accum
                loss.backward()
                running += loss.item()
                epoch_loss += loss.detach()
                if (idx + 1) % self.accum:
                    continue
                norm = self.grad_norm()
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.cfg["max_norm"])
                self.opt.step()
                self.opt.zero_grad(set_to_none=True)
                self.sched.step()
                self.global_step += 1
                pbar.update(1)
                if self.global_step % self.cfg["log_every_n_steps"] == 0:
                    mem = torch.cuda.max_memory_allocated() / 2**30
                    dt = time.perf_counter() - t0
                    log.info("step %d loss %.4f norm %.3f mem %.1fG %.1fs", self.global_step, running, norm, mem, dt)
                    t0 = time.perf_counter()
                running = 0.0
            log.info("epoch %d mean loss %.4f", epoch, epoch_loss.item() / max(1, self.global_step))
            self.model.save_pretrained(f"{self.cfg['out']}/epoch{epoch}")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--config", required=True)
    logging.basicConfig(level=logging.INFO)
    with open(ap.parse_args().config) as f:
        LoRARecipe(yaml.safe_load(f)).train()

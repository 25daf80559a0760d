import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer


class GRPO:
    def __init__(self, name, reward_fn, group=8, beta=0.04, eps=0.2, inner=4, lr=1e-6, device="cuda"):
        self.tok = AutoTokenizer.from_pretrained(name, padding_side="left")
        load = lambda: AutoModelForCausalLM.from_pretrained(
            name, torch_dtype=torch.bfloat16, attn_implementation="flash_attention_2"
        ).to(device)
        self.policy = load()
        self.ref = load().eval().requires_grad_(False)
        self.reward_fn, self.group, self.beta, self.eps, self.inner = reward_fn, group, beta, eps, inner
        self.opt = torch.optim.AdamW(self.policy.parameters(), lr=lr, fused=True)
        self.device = device

    def logps(self, model, ids, mask, n_prompt):
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1]
        target = ids[:, 1:, None]
        lp = logits.gather(-1, target).squeeze(-1).float() - logits.float().logsumexp(dim=-1)
        return lp[:, n_prompt - 1:]

    @torch.no_grad()
    def rollout(self, prompts, max_new_tokens=512):
        self.policy.eval()
        texts = [p for p in prompts for _ in range(self.group)]
        enc = self.tok(texts, return_tensors="pt", padding=True).to(self.device)
        ids = self.policy.generate(**enc, max_new_tokens=max_new_tokens, do_sample=True, temperature=1.0,
                                   pad_token_id=self.tok.pad_token_id)
        n_prompt = enc["input_ids"].shape[1]
        comp = ids[:, n_prompt:]
        is_eos = comp == self.tok.eos_token_id
        first = torch.where(is_eos.any(dim=1), is_eos.int().argmax(dim=1), comp.shape[1])
        comp_mask = (torch.arange(comp.shape[1], device=self.device)[None] <= first[:, None]).long()
        mask = torch.cat([enc["attention_mask"], comp_mask], dim=1)
        answers = self.tok.batch_decode(comp, skip_special_tokens=True)
        rewards = torch.tensor(self.reward_fn(texts, answers), dtype=torch.float32, device=self.device)
        grouped = rewards.view(-1, self.group)
        adv = ((grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)).flatten()
        old = self.logps(self.policy, ids, mask, n_prompt)
        self.policy.train()
        return dict(ids=ids, mask=mask, comp_mask=comp_mask, adv=adv, old=old), n_prompt, rewards.mean()

    def step(self, prompts, micro=8):
        data, n_prompt, mean_reward = self.rollout(prompts)
        n = data["ids"].shape[0]
        kl_sum = torch.zeros((), device=self.device)
        for _ in range(self.inner):
            self.opt.zero_grad(set_to_none=True)
            for s in range(0, n, micro):
                mb = {k: v[s:s + micro] for k, v in data.items()}
                new = self.logps(self.policy, mb["ids"], mb["mask"], n_prompt)
                with torch.no_grad():
                    ref = self.logps(self.ref, mb["ids"], mb["mask"], n_prompt)
                kl = torch.exp(ref - new) - (ref - new) - 1
                ratio = torch.exp(new - mb["old"])
                a = mb["adv"][:, None]
                surr = torch.min(ratio * a, ratio.clamp(1 - self.eps, 1 + self.eps) * a)
                cm = mb["comp_mask"].float()
                per_seq = ((-surr + self.beta * kl) * cm).sum(dim=1) / cm.sum(dim=1).clamp(min=1)
                (per_seq.sum() / n).backward()
                kl_sum += (kl.detach() * cm).sum() / cm.sum()
            torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
            self.opt.step()
        return {"reward": mean_reward.item(), "kl": kl_sum.item() / (self.inner * -(-n // micro))}


def main(dataset, reward_fn, n_steps=500, batch=8):
    algo = GRPO("Qwen/Qwen2.5-1.5B-Instruct", reward_fn)
    for step in range(n_steps):
        prompts = [dataset[(step * batch + i) % len(dataset)]["prompt"] for i in range(batch)]
        stats = algo.step(prompts)
        print(step, {k: round(v, 4) for k, v in stats.items()})
        if step and step % 100 == 0:
            algo.policy.save_pretrained(f"out/grpo-{step}")

import argparse
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

SYSTEM = "You are a helpful assistant. Answer briefly and precisely."


def top_p_filter(logits, top_p):
    sorted_logits, order = torch.sort(logits, descending=True, dim=-1)
    cum = torch.softmax(sorted_logits, dim=-1).cumsum(dim=-1)
    drop = cum > top_p
    drop[..., 1:] = drop[..., :-1].clone()
    drop[..., 0] = False
    return logits.masked_fill(drop.scatter(-1, order, drop), float("-inf"))


class Chat:
    def __init__(self, name, device="cuda", temperature=0.7, top_p=0.9):
        self.tok = AutoTokenizer.from_pretrained(name)
        self.model = AutoModelForCausalLM.from_pretrained(name, torch_dtype=torch.float16).to(device).eval()
        self.device = device
        self.temperature = temperature
        self.top_p = top_p
        self.history = [{"role": "system", "content": SYSTEM}]

    @torch.inference_mode()
    def reply(self, text, max_new_tokens=1024):
        self.history.append({"role": "user", "content": text})
        ids = self.tok.apply_chat_template(
            self.history, add_generation_prompt=True, return_tensors="pt"
        ).to(self.device)
        start = ids.shape[1]
        shown = ""
        for _ in range(max_new_tokens):
            out = self.model(input_ids=ids, use_cache=False)
            logits = out.logits[:, -1] / self.temperature
            probs = torch.softmax(top_p_filter(logits, self.top_p), dim=-1)
            nxt = torch.multinomial(probs, num_samples=1)
            ids = torch.cat([ids, nxt], dim=1)
            if nxt.item() == self.tok.eos_token_id:
                break
            answer = self.tok.decode(ids[0, start:], skip_special_tokens=True)
            if not answer.endswith("\ufffd"):
                sys.stdout.write(answer[len(shown):])
                sys.stdout.flush()
                shown = answer
        self.history.append({"role": "assistant", "content": shown})
        return shown


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--model", default="lmsys/vicuna-7b-v1.5")
    ap.add_argument("--temperature", type=float, default=0.7)
    ap.add_argument("--max-new-tokens", type=int, default=1024)
    args = ap.parse_args()
    chat = Chat(args.model, temperature=args.temperature)
    while True:
        try:
            line = input("\n> ")
        except EOFError:
            break
        if line.strip() == "/reset":
            chat.history = chat.history[:1]
            continue
        chat.reply(line, args.max_new_tokens)


if __name__ == "__main__":
    main()

import asyncio
from contextlib import asynccontextmanager
from typing import List

import torch
import torch.nn.functional as F
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel
from transformers import AutoModel, AutoTokenizer

NAME = "intfloat/e5-base-v2"
MAX_BATCH = 64
WAIT_MS = 4


class Engine:
    def __init__(self, name, device):
        self.tok = AutoTokenizer.from_pretrained(name)
        self.model = AutoModel.from_pretrained(name, torch_dtype=torch.float16).to(device).eval()
        self.device = device
        self.queue: asyncio.Queue = asyncio.Queue(maxsize=4096)

    @torch.inference_mode()
    def encode(self, texts):
        enc = self.tok(texts, padding=True, truncation=True, max_length=512, return_tensors="pt")
        enc = enc.to(self.device)
        hidden = self.model(**enc).last_hidden_state
        mask = enc["attention_mask"][..., None].to(hidden.dtype)
        pooled = (hidden * mask).sum(dim=1) / mask.sum(dim=1)
        return F.normalize(pooled.float(), dim=1).cpu().tolist()

    async def gather(self):
        items = [await self.queue.get()]
        deadline = asyncio.get_running_loop().time() + WAIT_MS / 1000
        while len(items) < MAX_BATCH:
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                break
            try:
                items.append(await asyncio.wait_for(self.queue.get(), timeout=left))
            except asyncio.TimeoutError:
                break
        return items

    async def worker(self):
        while True:
            items = await self.gather()
            try:
                vectors = await asyncio.to_thread(self.encode, [text for text, _ in items])
            except Exception as e:
                for _, fut in items:
                    if not fut.done():
                        fut.set_exception(e)
                continue
            for (_, fut), v in zip(items, vectors):
                if not fut.done():
                    fut.set_result(v)

    async def submit(self, text):
        fut = asyncio.get_running_loop().create_future()
        await self.queue.put((text, fut))
        return await fut


@asynccontextmanager
async def lifespan(app):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    app.state.engine = Engine(NAME, device)
    app.state.engine.encode(["warm up"] * MAX_BATCH)
    task = asyncio.create_task(app.state.engine.worker())
    yield
    task.cancel()


app = FastAPI(title="embeddings", lifespan=lifespan)


class Request(BaseModel):
    texts: List[str]
    prefix: str = "query: "


@app.post("/embed")
async def embed(req: Request):
    if not req.texts or len(req.texts) > 256:
        raise HTTPException(status_code=422, detail="between 1 and 256 texts")
    engine = app.state.engine
    vectors = await asyncio.gather(*(engine.submit(req.prefix + t) for t in req.texts))
    return {"model": NAME, "dim": len(vectors[0]), "vectors": vectors}


@app.get("/health")
async def health():
    return {"queued": app.state.engine.queue.qsize()}


if __name__ == "__main__":
    import uvicorn

    uvicorn.run(app, host="0.0.0.0", port=8080)

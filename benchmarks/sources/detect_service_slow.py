import io
from functools import lru_cache
from typing import List

import torch
from fastapi import FastAPI, File, Form, HTTPException, UploadFile
from fastapi.responses import JSONResponse
from PIL import Image, UnidentifiedImageError
from torchvision.models.detection import (
    FasterRCNN_ResNet50_FPN_V2_Weights,
    fasterrcnn_resnet50_fpn_v2,
    retinanet_resnet50_fpn_v2,
)
from torchvision.transforms.functional import pil_to_tensor

app = FastAPI(title="detector")
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

BUILDERS = {"frcnn": fasterrcnn_resnet50_fpn_v2, "retina": retinanet_resnet50_fpn_v2}
NAMES = dict(enumerate(FasterRCNN_ResNet50_FPN_V2_Weights.DEFAULT.meta["categories"]))


@lru_cache(maxsize=None)
def checkpoint_path(name: str) -> str:
    return f"weights/{name}.pt"


def get_model(name: str):
    model = BUILDERS[name](weights=None, weights_backbone=None, num_classes=len(NAMES))
    state = torch.load(checkpoint_path(name), map_location="cpu", weights_only=True)
    model.load_state_dict(state)
    return model.eval().to(device)


async def read_image(upload: UploadFile) -> torch.Tensor:
    data = await upload.read()
    try:
        img = Image.open(io.BytesIO(data)).convert("RGB")
    except UnidentifiedImageError:
        raise HTTPException(status_code=422, detail=f"{upload.filename} is no image")
    return pil_to_tensor(img).float().div_(255)


def to_records(out, threshold):
    keep = out["scores"] >= threshold
    boxes = out["boxes"][keep].cpu().tolist()
    scores = out["scores"][keep].cpu().tolist()
    labels = out["labels"][keep].cpu().tolist()
    return [
        {"name": NAMES.get(c, str(c)), "score": round(s, 4), "box": [round(v, 1) for v in b]}
        for b, s, c in zip(boxes, scores, labels)
    ]


@app.get("/health")
def health():
    return {"device": str(device), "models": sorted(BUILDERS)}


@app.post("/detect")
async def detect(
    files: List[UploadFile] = File(...),
    model_name: str = Form("frcnn"),
    threshold: float = Form(0.4),
):
    if model_name not in BUILDERS:
        raise HTTPException(status_code=404, detail=f"unknown model {model_name}")
    model = get_model(model_name)
    images = [await read_image(f) for f in files]
    with torch.inference_mode():
        outputs = model([image.to(device, non_blocking=True) for image in images])
    results = [
        {"file": f.filename, "detections": to_records(out, threshold)} for f, out in zip(files, outputs)
    ]
    return JSONResponse({"model": model_name, "results": results})


if __name__ == "__main__":
    import uvicorn

    uvicorn.run(app, host="0.0.0.0", port=8000)

"""Diffusion: a UNet turns noise into images, step by step.

Usage (needs torch and diffusers)::

    python diffusion_slow.py
"""

import statistics
import time

import torch
from diffusers import DDPMScheduler, UNet2DModel

IMAGES = 4
IMAGE_SIZE = 32
DENOISING_STEPS = 80


def sample(model: UNet2DModel, scheduler: DDPMScheduler) -> tuple[torch.Tensor, float]:
    """Return images drawn from the model, float32[4, 3, 32, 32], and the mean step time."""
    images = torch.randn(IMAGES, 3, IMAGE_SIZE, IMAGE_SIZE)
    scheduler.set_timesteps(DENOISING_STEPS)
    step_ms = []
    for timestep in scheduler.timesteps:
        begin = time.perf_counter()
        noise = model(images, timestep).sample
        images = scheduler.step(noise, timestep, images).prev_sample
        step_ms.append((time.perf_counter() - begin) * 1e3)
    return images, statistics.mean(step_ms[5:])


def main() -> None:
    """Draw one batch of images."""
    model = UNet2DModel(
        sample_size=IMAGE_SIZE,
        block_out_channels=(32, 64, 64),
        layers_per_block=1,
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
    ).eval()
    images, step_ms = sample(model, DDPMScheduler(num_train_timesteps=1000))
    print(f"mean {images.mean():.4f}, standard deviation {images.std():.4f}")
    print(f"mean step: {step_ms:.2f} ms")


if __name__ == "__main__":
    torch.manual_seed(0)
    main()

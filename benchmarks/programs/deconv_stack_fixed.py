"""Deblur a stack of microscope images: total-variation MAP estimate by gradient descent.

Forward model: linear (not circular) convolution with a measured point-spread function,
cropped to the sensor, plus noise.  One slab of the stack at a time, warm started.
"""
import math
import sys
import time

import numpy as np
import torch

SIZE = 512
PSF = 31
SLAB = 2
ITERS = 90
LAMBDA = 2e-3


def airy_like_psf(n, width=3.2, astig=0.35):
    ax = np.arange(n) - (n - 1) / 2
    yy, xx = np.meshgrid(ax, ax, indexing="ij")
    r = np.sqrt((xx * (1 + astig)) ** 2 + yy ** 2) / width
    core = np.exp(-0.5 * r ** 2)
    ring = 0.15 * np.exp(-0.5 * ((r - 2.4) / 0.5) ** 2)
    k = core + ring
    return torch.from_numpy((k / k.sum()).astype(np.float32))


def phantom(n_slices, size, rng):
    """filaments and blobs"""
    out = np.zeros((n_slices, size, size), np.float32)
    yy, xx = np.mgrid[0:size, 0:size].astype(np.float32)
    for s in range(n_slices):
        for _ in range(25):
            cy, cx = rng.uniform(20, size - 20, 2)
            rad = rng.uniform(2, 7)
            out[s] += rng.uniform(0.3, 1.0) * (((yy - cy) ** 2 + (xx - cx) ** 2) < rad ** 2)
        for _ in range(8):
            th, off = rng.uniform(0, math.pi), rng.uniform(-0.4, 0.4) * size
            d = np.abs((xx - size / 2) * math.sin(th) - (yy - size / 2) * math.cos(th) + off)
            out[s] += 0.6 * (d < 1.5)
    return torch.from_numpy(np.clip(out, 0, 2))


def next_smooth(n):
    """smallest m >= n whose only prime factors are 2, 3, 5 and 7"""
    while True:
        m = n
        for p in (2, 3, 5, 7):
            while m % p == 0:
                m //= p
        if m == 1:
            return n
        n += 1


class LinearBlur:
    """`same` convolution with the PSF through zero-padded FFTs."""

    def __init__(self, psf, shape):
        self.shape = shape
        kh, kw = psf.shape
        self.fft_shape = (next_smooth(shape[0] + kh - 1), next_smooth(shape[1] + kw - 1))
        self.top, self.left = (kh - 1) // 2, (kw - 1) // 2
        self.otf = torch.fft.rfft2(psf, s=self.fft_shape)

    def __call__(self, x):
        f = torch.fft.rfft2(x, s=self.fft_shape)
        full = torch.fft.irfft2(f * self.otf, s=self.fft_shape)
        h, w = self.shape
        return full[..., self.top:self.top + h, self.left:self.left + w]


def total_variation(x, eps=1e-4):
    dy = x[..., 1:, :-1] - x[..., :-1, :-1]
    dx = x[..., :-1, 1:] - x[..., :-1, :-1]
    return (dx.square() + dy.square() + eps).sqrt().sum()


def psnr(x, ref):
    return 10 * math.log10(float(ref.max() ** 2 / (x - ref).square().mean()))


class SlabSolver:
    def __init__(self, blur, lam, lr=0.04):
        self.blur, self.lam, self.lr = blur, lam, lr
        self.history = []

    def begin(self, measured, init):
        self.measured = measured
        self.x = init.clone().requires_grad_(True)
        self.opt = torch.optim.Adam([self.x], lr=self.lr, betas=(0.9, 0.95))

    def iterate(self):
        self.opt.zero_grad(set_to_none=True)
        residual = self.blur(self.x) - self.measured
        fidelity = 0.5 * residual.square().sum()
        loss = fidelity + self.lam * total_variation(self.x)
        loss.backward()
        self.opt.step()
        with torch.no_grad():
            self.x.clamp_(min=0.0)
        return loss.detach()

    def result(self):
        return self.x.detach()


def main(n_slabs):
    rng = np.random.default_rng(11)
    gen = torch.Generator().manual_seed(11)
    psf = airy_like_psf(PSF)
    blur = LinearBlur(psf, (SIZE, SIZE))
    truth = phantom(n_slabs * SLAB, SIZE, rng)
    measured = blur(truth) + 0.01 * torch.randn(truth.shape, generator=gen)
    solver = SlabSolver(blur, LAMBDA)

    estimate = torch.zeros_like(truth)
    steps, t0 = 0, time.perf_counter()
    for s in range(n_slabs):
        sl = slice(s * SLAB, (s + 1) * SLAB)
        solver.begin(measured[sl], measured[sl].clamp(min=0))
        for it in range(ITERS):
            loss = solver.iterate()
            if it % 20 == 0:
                solver.history.append((s, it, loss.item()))
            steps += 1
        estimate[sl] = solver.result()
        print(f"slab {s}: loss {loss.item():.4f}  psnr {psnr(measured[sl], truth[sl]):.2f}"
              f" -> {psnr(estimate[sl], truth[sl]):.2f} dB")
    dt = time.perf_counter() - t0
    print(f"stack psnr {psnr(estimate, truth):.3f} dB")
    print(f"{steps} iterations in {dt:.1f} s, {1000 * dt / steps:.1f} ms/iteration")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)

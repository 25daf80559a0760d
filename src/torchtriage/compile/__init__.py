"""torch.compile and PyTorch/XLA: logs, shape buckets, graphs."""

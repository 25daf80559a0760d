"""How many HLO graphs a model becomes on PyTorch/XLA, by dynamo and by LazyTensor, and why."""

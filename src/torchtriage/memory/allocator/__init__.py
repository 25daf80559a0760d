"""PyTorch's CUDA caching allocator, simulated: what other settings would have reserved."""

from torchtriage.memory.allocator.recording import AllocatorRecording, ReplayError, record
from torchtriage.memory.allocator.replay import Replayed, replay
from torchtriage.memory.allocator.settings import Settings
from torchtriage.memory.allocator.simulator import Simulator

__all__ = ["AllocatorRecording", "ReplayError", "Replayed", "Settings", "Simulator", "record", "replay"]

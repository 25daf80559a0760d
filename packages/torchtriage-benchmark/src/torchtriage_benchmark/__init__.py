"""The making of the open benchmark: programs with known faults, recorded, and the detector trained on them."""

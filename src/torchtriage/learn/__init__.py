"""The benchmark, the detector's training and second opinions."""

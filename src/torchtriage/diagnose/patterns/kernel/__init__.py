"""Device time spent on slower kernels than necessary."""

"""Runs a simgnn program for real on torch.distributed. Started as ``python -m executor``; never imported by simgnn."""

from executor.launch.startup import share_runtime

share_runtime()

"""Energy as the machine itself measures it: RAPL counters of processors, NVML counters or power of GPUs.

Source: docs/systems/mini-batches.md. Where nothing can be read there is no number, and the reason why.
"""

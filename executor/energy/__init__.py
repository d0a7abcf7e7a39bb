"""Energy as the machine itself measures it: RAPL counters of processors, NVML counters or power of GPUs.

Source: docs/systems/mini-batches.md. Where nothing can be read, the record says why instead of a number.
"""

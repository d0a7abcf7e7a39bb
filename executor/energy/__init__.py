"""Measures the energy of a run from the machine's own counters: RAPL for processors, NVML for GPUs.

Source: docs/systems/mini-batches.md. Where no counter can be read, the result records the reason instead of a number.
"""

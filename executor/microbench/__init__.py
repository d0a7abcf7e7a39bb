"""Measures what one machine's ops and transfers cost, with the kernels, threads and allocator that training uses.

``python -m executor.microbench --ranks P --out samples.json [--quick]``; started by ``simgnn calibrate``, or under
``torchrun``. It only measures: ``simgnn.analysis.fit.profile`` turns samples into a hardware profile.
"""

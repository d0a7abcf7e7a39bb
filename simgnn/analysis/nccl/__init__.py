"""Laws and curves of NCCL's all-reduces from tables of measured times, scored on what they were not fitted on."""

"""Single-process references that distributed training is checked against."""

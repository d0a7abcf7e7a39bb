"""What work, messages and collectives cost on a machine."""

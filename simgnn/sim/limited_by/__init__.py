"""What limits a simulated epoch: its critical path, and the numbers of the profile that its length depends on."""

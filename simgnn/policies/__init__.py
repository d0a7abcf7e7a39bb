"""The policies, one folder a slot and one file a policy."""

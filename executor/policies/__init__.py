"""Faster kernels for what policies do at run time: never needed, and equal to the policies' own lines."""

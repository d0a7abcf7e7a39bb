"""Optional faster kernels for policies, with the same results as the policies' own functions."""

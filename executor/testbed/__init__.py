"""A real heterogeneous cluster on one Linux machine: hosts are network namespaces, links are shaped, ranks have quotas.

``declaration``: the TOML file, and where hosts and ranks sit · ``network``: namespaces and ``tc`` · ``cgroups``: quotas
· ``state``: records and locks · ``lifecycle``: up, hold, down, status · ``runs``: ranks inside · ``profile``: the
hardware profile of a declared testbed.
"""

"""A real heterogeneous cluster on one Linux machine: hosts are network namespaces, links are shaped, ranks have quotas.

``declaration`` what the TOML file says · ``places`` where each rank sits · ``network`` namespaces and ``tc`` ·
``cgroups`` quotas · ``state`` what was made · ``lifecycle`` up, down, status · ``hold`` up for one process · ``runs``
ranks inside · ``profile`` the hardware profile of what was declared.
"""

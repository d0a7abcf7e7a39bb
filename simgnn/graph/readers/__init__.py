"""Readers: one module a format, each ``read_*(path, ...) -> Graph`` or ``from_*(object) -> Graph``."""

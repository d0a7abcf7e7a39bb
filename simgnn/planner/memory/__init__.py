"""Memory that a program needs: what it holds, whether that fits, and how large caches may be."""

"""The cache of compiled programs on disk: what is in it, how large it is, and how to make it smaller.

    from netcl.runtime import cache

    for entry in cache.list():
        print(entry.kernels, entry.device, entry.nbytes)
    cache.prune(max_bytes=200 << 20, older_than=30)  # days without use

``netcl cache`` does the same on the command line.
"""

from netcl._netcl.runtime import CacheEntry, cache_clear as clear, cache_list as list, cache_prune as prune, cache_size as size

__all__ = ["CacheEntry", "clear", "list", "prune", "size"]

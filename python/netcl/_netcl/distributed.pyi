"""The extension's part of ``netcl.distributed``."""

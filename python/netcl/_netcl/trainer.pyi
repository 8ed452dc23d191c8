"""The extension's part of ``netcl.trainer``."""

"""Types of the extension's part of ``netcl.data``."""

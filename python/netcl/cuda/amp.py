"""PyTorch's older place for ``netcl.amp``."""

from netcl.amp import GradScaler as GradScaler, autocast as autocast

"""Models, tensors and checkpoints in files.

    from netcl.io import load_model, save_model

    save_model(model, "model.netcl")
    model = load_model("model.netcl")
"""

from netcl.io.checkpoint import load_checkpoint, save_checkpoint
from netcl.io.serialization import load_model, load_tensors, save_model, save_tensors

__all__ = ["load_checkpoint", "load_model", "load_tensors", "save_checkpoint", "save_model", "save_tensors"]

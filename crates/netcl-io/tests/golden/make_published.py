"""Makes published.netcl and published-run.npz with the published package: python make_published.py (netcl 0.4.4, pyopencl, PoCL)."""

from pathlib import Path

import numpy as np
from netcl.core.device import manager
from netcl.core.tensor import Tensor
from netcl.io import save_model
from netcl.nn.factory import build_sequential

HERE = Path(__file__).parent
CONFIG = [
    {"type": "Conv2d", "args": {"in_channels": 1, "out_channels": 4, "kernel_size": 3, "stride": 1, "pad": 1}},
    {"type": "BatchNorm2d", "args": {"num_features": 4}},
    {"type": "LeakyReLU", "args": {"negative_slope": 0.1}},
    {"type": "MaxPool2d", "args": {"kernel_size": 2, "stride": 2}},
    {"type": "Flatten"},
    {"type": "Dropout", "args": {"p": 0.25}},
    {"type": "Linear", "args": {"in_features": 64, "out_features": 5}},
    {"type": "Tanh"},
    {"type": "Linear", "args": {"in_features": 5, "out_features": 3}},
]

queue = manager.default().queue
np.random.seed(0)
model = build_sequential(queue, CONFIG)
x = np.random.randn(2, 1, 8, 8).astype("f4")
for layer in model.layers:
    state = layer.state_dict()
    if "running_mean" in state:
        state["running_mean"] = np.random.randn(4).astype("f4")
        state["running_var"] = np.random.rand(4).astype("f4") + 0.5
        layer.load_state_dict(state)
model.eval()
np.savez(HERE / "published-run.npz", x=x, y=model(Tensor.from_host(queue, x)).to_host())
save_model(model, str(HERE / "published.netcl"))

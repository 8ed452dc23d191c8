"""Makes the files beside it with PyTorch, safetensors and NumPy: python make.py (torch 2.15, safetensors 0.8, numpy 2.4)."""

import json
import os
from collections import OrderedDict
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

HERE = Path(__file__).parent


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """0, 1, 2, ... quarters."""
    return (torch.arange(int(np.prod(shape)), dtype=torch.float64).reshape(shape) / 4).to(dtype)


def state() -> "OrderedDict[str, torch.Tensor]":
    """Every dtype, as its values 0 to 5 or quarters."""
    tensors = OrderedDict()
    for name in ["float32", "float64", "float16", "bfloat16"]:
        tensors[f"floats.{name}"] = numbers(2, 3, dtype=getattr(torch, name))
    for name in ["uint8", "int8", "int16", "int32", "int64", "bool"]:
        tensors[f"whole.{name}"] = torch.tensor([[0, 1, 2], [3, 4, 5]]).to(getattr(torch, name))
    tensors["scalar"] = torch.tensor(0.5)
    tensors["empty"] = torch.zeros(0, 3)
    return tensors


def main() -> None:
    """Writes all files."""
    os.chdir(HERE)
    torch.save(state(), "zip.pt")
    torch.save(state(), "legacy.pt", _use_new_zipfile_serialization=False)

    # Views of one storage: a part, every second column, a transposed and an expanded one, and a parameter that is tied.
    base = numbers(4, 6)
    views = {
        "base": base,
        "part": base[1:3],
        "columns": base[:, 1::2],
        "transposed": base.t(),
        "expanded": base[:1, 2:3].expand(2, 3),
        "tied": torch.nn.Parameter(base),
        "wide": torch.tensor([1, 65535], dtype=torch.uint16),
        "eight": torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn),
    }
    torch.save(views, "views.pt")
    del views["wide"], views["eight"]
    torch.save(views, "views-legacy.pt", _use_new_zipfile_serialization=False)

    torch.save(views["part"], "legacy-protocol-4.pt", pickle_protocol=4, _use_new_zipfile_serialization=False)
    torch.save({"negated": torch._neg_view(torch.ones(2))}, "negated.pt")

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 5])
    for _ in range(2):
        optimizer.zero_grad()
        model(numbers(4, 3)).square().sum().backward()
        optimizer.step()
        schedule.step()
    checkpoint = {
        "epoch": 3,
        "best": 0.25,
        "name": "größer",
        "nothing": None,
        "dtype": torch.bfloat16,
        "shape": torch.Size([2, 3]),
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "schedule": schedule.state_dict(),
        "random": torch.get_rng_state()[:4],
        "history": [{"loss": 1.5}, {"loss": float("inf")}],
        "raw": b"\x00\xff",
    }
    torch.save(checkpoint, "checkpoint.pt")
    torch.save(model, "module.pt")  # The whole object, which is refused.

    save_file(dict(state()), "plain.safetensors", metadata={"format": "pt", "title": "größer"})
    save_file({"eight": torch.tensor([1.0]).to(torch.float8_e5m2), "good": numbers(2)}, "float8.safetensors")
    shards = {
        "shards-00001-of-00002.safetensors": {"a.weight": numbers(2, 3), "a.bias": numbers(2)},
        "shards-00002-of-00002.safetensors": {"b.weight": numbers(3, 2, dtype=torch.bfloat16)},
    }
    places = {}
    for name, tensors in shards.items():
        save_file(tensors, name, metadata={"format": "pt"})
        places |= dict.fromkeys(tensors, name)
    index = {"metadata": {"total_size": 44}, "weight_map": places}
    Path("shards.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")

    arrays = {name: tensor.numpy() for name, tensor in state().items() if name != "floats.bfloat16"}
    arrays["fortran"] = np.asfortranarray(numbers(2, 3, 4).numpy())
    arrays["big"] = numbers(2, 3).numpy().astype(">f4")
    arrays["complex"] = np.array([1 + 2j], np.complex64)
    arrays["text"] = np.array("a text")
    arrays["names"] = np.array(["cat", "dog"])
    np.savez("plain.npz", **arrays)
    np.savez_compressed("compressed.npz", **arrays)


if __name__ == "__main__":
    main()

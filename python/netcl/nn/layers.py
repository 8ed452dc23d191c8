"""Every layer and container, from the files of their families."""

from netcl.nn.activation import *
from netcl.nn.attention import *
from netcl.nn.container import *
from netcl.nn.conv import *
from netcl.nn.decoder import *
from netcl.nn.dropout import *
from netcl.nn.embedding import *
from netcl.nn.gpt import *
from netcl.nn.linear import *
from netcl.nn.loss import *
from netcl.nn.module import Module, Parameter
from netcl.nn.normalization import *
from netcl.nn.padding import *
from netcl.nn.pooling import *
from netcl.nn.rnn import *
from netcl.nn.shape import *
from netcl.nn.transformer import *

__all__ = [
    "CELU", "ELU", "GELU", "GLU", "GPT", "GRU", "LSTM", "RNN", "SELU", "AdaptiveAvgPool1d", "AdaptiveAvgPool2d",
    "AdaptiveMaxPool1d", "AdaptiveMaxPool2d", "AvgPool1d", "AvgPool2d", "BCELoss", "BCEWithLogitsLoss", "BatchNorm1d",
    "BatchNorm2d", "Bilinear", "CTCLoss", "CausalSelfAttention", "CircularPad1d", "CircularPad2d", "Concat", "ConstantPad1d",
    "ConstantPad2d", "Conv1d", "Conv2d", "ConvTranspose1d", "ConvTranspose2d", "CosineEmbeddingLoss", "CrossEntropyLoss",
    "DecoderBlock", "DepthwiseConv2d", "Dropout", "Dropout1d", "Dropout2d", "Embedding", "EmbeddingBag", "Flatten", "Fold",
    "GRUCell", "GaussianNLLLoss", "GlobalAvgPool2d", "GroupNorm", "HardSigmoid", "HardSwish", "HardTanh", "Hardshrink",
    "Hardsigmoid", "Hardswish", "Hardtanh", "HingeEmbeddingLoss", "HuberLoss", "Identity", "InstanceNorm1d", "InstanceNorm2d",
    "KLDivLoss", "KVCache", "L1Loss", "LSTMCell", "LayerNorm", "LeakyReLU", "Linear", "LogSigmoid", "LogSoftmax", "MSELoss",
    "MarginRankingLoss", "MaxPool1d", "MaxPool2d", "Mish", "Module", "ModuleDict", "ModuleList", "MultiLabelMarginLoss",
    "MultiLabelSoftMarginLoss", "MultiMarginLoss", "MultiheadAttention", "NLLLoss", "PReLU", "Parameter", "ParameterDict",
    "ParameterList", "PixelShuffle", "PixelUnshuffle", "PoissonNLLLoss", "PositionalEmbedding", "RMSNorm", "RNNCell", "ReLU",
    "ReLU6", "ReflectionPad1d", "ReflectionPad2d", "ReplicationPad1d", "ReplicationPad2d", "Residual", "RotaryAttention",
    "Sequential", "SiLU", "Sigmoid", "SinusoidalEmbedding", "SmoothL1Loss", "SoftMarginLoss", "Softmax", "Softmax2d", "Softmin",
    "Softplus", "Softshrink", "Softsign", "SwiGLU", "Swish", "Tanh", "Tanhshrink", "Threshold", "TiedLinear",
    "TransformerBlock", "TransformerDecoder", "TransformerDecoderLayer", "TransformerEncoder", "TransformerEncoderLayer",
    "TripletMarginLoss", "Unflatten", "Unfold", "Upsample", "ZeroPad1d", "ZeroPad2d",
]

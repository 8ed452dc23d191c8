"""Every layer and container, from the files of their families."""

from netcl.nn import (
    activation,
    attention,
    container,
    conv,
    decoder,
    dropout,
    embedding,
    gpt,
    linear,
    loss,
    normalization,
    padding,
    pooling,
    rnn,
    shape,
    transformer,
)
from netcl.nn.activation import *  # noqa: F403
from netcl.nn.attention import *  # noqa: F403
from netcl.nn.container import *  # noqa: F403
from netcl.nn.conv import *  # noqa: F403
from netcl.nn.decoder import *  # noqa: F403
from netcl.nn.dropout import *  # noqa: F403
from netcl.nn.embedding import *  # noqa: F403
from netcl.nn.gpt import *  # noqa: F403
from netcl.nn.linear import *  # noqa: F403
from netcl.nn.loss import *  # noqa: F403
from netcl.nn.module import Module, Parameter
from netcl.nn.normalization import *  # noqa: F403
from netcl.nn.padding import *  # noqa: F403
from netcl.nn.pooling import *  # noqa: F403
from netcl.nn.rnn import *  # noqa: F403
from netcl.nn.shape import *  # noqa: F403
from netcl.nn.transformer import *  # noqa: F403

__all__ = [
    "Module",
    "Parameter",
    *activation.__all__,
    *attention.__all__,
    *container.__all__,
    *conv.__all__,
    *decoder.__all__,
    *dropout.__all__,
    *embedding.__all__,
    *gpt.__all__,
    *linear.__all__,
    *loss.__all__,
    *normalization.__all__,
    *padding.__all__,
    *pooling.__all__,
    *rnn.__all__,
    *shape.__all__,
    *transformer.__all__,
]

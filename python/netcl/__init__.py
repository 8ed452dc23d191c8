"""netcl: deep learning on any OpenCL device, or on none.

    import netcl

    x = netcl.randn(3, 4, requires_grad=True)
    x.exp().sum(dim=1).mean().backward()
    print(x.grad)

The subpackages mirror the documentation: ``netcl.core.tensor``, ``netcl.core.device``, and so on. Importing this package
needs neither NumPy's nor OpenCL's attention; both are looked up when first used.
"""

from math import e as e, inf as inf, nan as nan, pi as pi
from typing import TYPE_CHECKING

from netcl._composed import *
from netcl._dtypes import *
from netcl._factories import *
from netcl._functions import *
from netcl._netcl import (
    BuildError as BuildError,
    IndexTensor as IndexTensor,
    KernelSpec as KernelSpec,
    Tensor as Tensor,
    __version__ as __version__,
    device as device,
    from_dlpack as from_dlpack,
    get_matmul_precision as get_matmul_precision,
    num_threads as num_threads,
    set_matmul_precision as set_matmul_precision,
    set_num_threads as set_num_threads,
)
from netcl._netcl.autograd import is_grad_enabled as is_grad_enabled
from netcl.autograd.ops import *  # type: ignore[assignment, no-redef]
from netcl.autograd.tape import (
    enable_grad as enable_grad,
    inference_mode as inference_mode,
    no_grad as no_grad,
    set_grad_enabled as set_grad_enabled,
)
from netcl.core.device import manager as manager
from netcl.ops import build_matmul_kernel as build_matmul_kernel

# isort: split
# Once more, over the functions of ``netcl.autograd`` that have the same names.
from netcl._composed import *
from netcl._factories import *
from netcl._functions import *
from netcl._lazy import attributes
from netcl._methods import Methods as _Methods  # noqa: F401 - methods are attached when it is imported
from netcl._names import *

if TYPE_CHECKING:
    from netcl import (
        amp as amp,
        autograd as autograd,
        backends as backends,
        core as core,
        cuda as cuda,
        data as data,
        distributed as distributed,
        distributions as distributions,
        func as func,
        io as io,
        linalg as linalg,
        nn as nn,
        onnx as onnx,
        ops as ops,
        optim as optim,
        profiling as profiling,
        runtime as runtime,
        trainer as trainer,
        utils as utils,
    )
    from netcl.amp import autocast as autocast
    from netcl.io.objects import load as load, save as save
else:
    # Most programs use few of these, and together they take several times as long to import as the rest.
    _modules = (
        "amp backends cuda data distributed distributions func io linalg nn onnx optim profiling runtime trainer utils"
    ).split()
    _names = dict(autocast="netcl.amp", load="netcl.io.objects", save="netcl.io.objects")
    __getattr__, __dir__ = attributes(__name__, _modules, **_names)
    del _modules, _names
del TYPE_CHECKING, attributes

"""Types of the extension's part of ``netcl.optim``."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, final, overload

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from netcl._netcl import Tensor

_Params: TypeAlias = Iterable[Tensor] | Iterable[Mapping[str, Any]]

def clip_grad_norm(params: Iterable[Tensor] | Tensor, max_norm: float) -> float: ...
def clip_grad_norm_device(params: Iterable[Tensor] | Tensor, max_norm: float) -> Tensor | float: ...
def clip_grad_value(params: Iterable[Tensor] | Tensor, clip_value: float) -> None: ...

class Optimizer:
    @property
    def lr(self) -> float: ...
    @lr.setter
    def lr(self, lr: float) -> None: ...
    @property
    def param_groups(self) -> list[ParamGroup]: ...
    def step(
        self,
        max_norm: float | Callable[[], Any] | None = None,
        *,
        closure: Callable[[], Any] | None = None,
        grad_scale: float | Tensor | None = None,
        found_inf: Tensor | None = None,
        skip_non_finite: bool = False,
    ) -> Any: ...
    def advance(self) -> None: ...
    def zero_grad(self, set_to_none: bool = True) -> None: ...
    def holds(self, tensors: Sequence[Tensor]) -> bool: ...
    def add_param_group(self, group: dict[str, Any]) -> None: ...
    def state_dict(self, *, gather: bool = False) -> dict[str, float | NDArray[np.floating[Any]]]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...

@final
class ParamGroup:
    @property
    def params(self) -> list[Tensor]: ...
    @property
    def lr(self) -> float: ...
    @lr.setter
    def lr(self, lr: float) -> None: ...
    @property
    def weight_decay(self) -> float: ...
    @weight_decay.setter
    def weight_decay(self, weight_decay: float) -> None: ...
    @property
    def momentum(self) -> float | None: ...
    @momentum.setter
    def momentum(self, momentum: float) -> None: ...
    @property
    def initial_lr(self) -> float: ...
    def keys(self) -> list[str]: ...
    @overload
    def __getitem__(self, key: Literal["params"], /) -> list[Tensor]: ...
    @overload
    def __getitem__(self, key: str, /) -> Any: ...
    def __setitem__(self, key: str, value: float, /) -> None: ...

class SGD(Optimizer):
    def __new__(
        cls,
        params: _Params,
        lr: float = 0.01,
        momentum: float = 0.0,
        *,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
    ) -> Self: ...
    @property
    def momentum(self) -> float: ...

class Momentum(Optimizer):
    def __new__(
        cls,
        params: _Params,
        lr: float = 0.01,
        momentum: float = 0.9,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> Self: ...
    @property
    def momentum(self) -> float: ...

class Adam(Optimizer):
    def __new__(
        cls,
        params: _Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
    ) -> Self: ...
    @property
    def betas(self) -> tuple[float, float]: ...

class AdamW(Optimizer):
    def __new__(
        cls,
        params: _Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
    ) -> Self: ...
    @property
    def betas(self) -> tuple[float, float]: ...

class RMSProp(Optimizer):
    def __new__(
        cls,
        params: _Params,
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        *,
        maximize: bool = False,
    ) -> Self: ...

class Adagrad(Optimizer):
    def __new__(
        cls,
        params: _Params,
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        *,
        maximize: bool = False,
    ) -> Self: ...

class NAdam(Optimizer):
    def __new__(
        cls,
        params: _Params,
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        *,
        maximize: bool = False,
    ) -> Self: ...

class RAdam(Optimizer):
    def __new__(
        cls,
        params: _Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
        *,
        maximize: bool = False,
    ) -> Self: ...

class Adamax(Optimizer):
    def __new__(
        cls,
        params: _Params,
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> Self: ...

class Adadelta(Optimizer):
    def __new__(
        cls,
        params: _Params,
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> Self: ...

class Lion(Optimizer):
    def __new__(
        cls,
        params: _Params,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> Self: ...

class Rprop(Optimizer):
    def __new__(
        cls,
        params: _Params,
        lr: float = 1e-2,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50.0),
        *,
        maximize: bool = False,
    ) -> Self: ...

class ASGD(Optimizer):
    def __new__(
        cls,
        params: _Params,
        lr: float = 1e-2,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> Self: ...

class Muon(Optimizer):
    def __new__(
        cls,
        params: _Params,
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315),
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: Literal["original", "match_rms_adamw", "spectral_unclamped"] | None = None,
    ) -> Self: ...

class LBFGS(Optimizer):
    def __new__(
        cls,
        params: Iterable[Tensor],
        lr: float = 1.0,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: Literal["strong_wolfe"] | None = None,
        *,
        maximize: bool = False,
    ) -> Self: ...
    def step(self, closure: Callable[[], Any]) -> Any: ...  # type: ignore[override]

class Ema:
    def __new__(cls, params: Iterable[Tensor] | Tensor, decay: float = 0.999, warmup: bool = True) -> Self: ...
    @property
    def averages(self) -> list[Tensor]: ...
    @property
    def decay(self) -> float: ...
    @property
    def updates(self) -> int: ...
    def update(self) -> None: ...
    def swap(self) -> None: ...
    def copy_to_params(self) -> None: ...
    def current_decay(self) -> float: ...
    def state_dict(self) -> dict[str, float | NDArray[np.floating[Any]]]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...

class LRScheduler:
    @property
    def last_epoch(self) -> int: ...
    @property
    def optimizer(self) -> Optimizer | None: ...
    def step(self) -> float: ...
    def get_last_lr(self) -> list[float]: ...
    def state_dict(self) -> dict[str, float]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...

@final
class StepLR(LRScheduler):
    def __new__(cls, optimizer: Optimizer | float, step_size: int, gamma: float = 0.1) -> Self: ...

@final
class MultiStepLR(LRScheduler):
    def __new__(cls, optimizer: Optimizer | float, milestones: Sequence[int], gamma: float = 0.1) -> Self: ...

@final
class ExponentialLR(LRScheduler):
    def __new__(cls, optimizer: Optimizer | float, gamma: float) -> Self: ...

@final
class CosineAnnealingLR(LRScheduler):
    def __new__(cls, optimizer: Optimizer | float, T_max: int, eta_min: float = 0.0) -> Self: ...

@final
class WarmupCosine(LRScheduler):
    def __new__(
        cls,
        optimizer: Optimizer | float,
        max_epochs: int | None = None,
        warmup_epochs: int | None = None,
        min_lr: float = 0.0,
        *,
        total_steps: int | None = None,
        warmup_steps: int | None = None,
    ) -> Self: ...
    def lr(self, epoch: int) -> float: ...

@final
class LambdaLR(LRScheduler):
    def __new__(
        cls, optimizer: Optimizer | float, lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]]
    ) -> Self: ...

@final
class OneCycleLR(LRScheduler):
    def __new__(
        cls,
        optimizer: Optimizer | float,
        max_lr: float | Sequence[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: Literal["cos", "linear"] = "cos",
        cycle_momentum: bool = True,
        base_momentum: float = 0.85,
        max_momentum: float = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
    ) -> Self: ...

@final
class ConstantLR(LRScheduler):
    def __new__(cls, optimizer: Optimizer | float, factor: float = ..., total_iters: int = 5) -> Self: ...

@final
class LinearLR(LRScheduler):
    def __new__(
        cls, optimizer: Optimizer | float, start_factor: float = ..., end_factor: float = 1.0, total_iters: int = 5
    ) -> Self: ...

@final
class PolynomialLR(LRScheduler):
    def __new__(cls, optimizer: Optimizer | float, total_iters: int = 5, power: float = 1.0) -> Self: ...

@final
class CosineAnnealingWarmRestarts(LRScheduler):
    def __new__(cls, optimizer: Optimizer | float, T_0: int, T_mult: int = 1, eta_min: float = 0.0) -> Self: ...

@final
class MultiplicativeLR(LRScheduler):
    def __new__(
        cls, optimizer: Optimizer | float, lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]]
    ) -> Self: ...

@final
class CyclicLR(LRScheduler):
    def __new__(
        cls,
        optimizer: Optimizer | float,
        base_lr: float | Sequence[float],
        max_lr: float | Sequence[float],
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: Literal["triangular", "triangular2", "exp_range"] = "triangular",
        gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None,
        scale_mode: Literal["cycle", "iterations"] = "cycle",
        cycle_momentum: bool = True,
        base_momentum: float = 0.8,
        max_momentum: float = 0.9,
    ) -> Self: ...

@final
class ChainedScheduler(LRScheduler):
    def __new__(cls, schedulers: Iterable[LRScheduler]) -> Self: ...

@final
class SequentialLR(LRScheduler):
    def __new__(cls, optimizer: Optimizer | float, schedulers: Iterable[LRScheduler], milestones: Sequence[int]) -> Self: ...

@final
class ReduceLROnPlateau:
    def __new__(
        cls,
        optimizer: Optimizer | float,
        mode: Literal["min", "max"] = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: Literal["rel", "abs"] = "rel",
        cooldown: int = 0,
        min_lr: float | Sequence[float] | None = None,
        eps: float = 1e-8,
    ) -> Self: ...
    @property
    def best(self) -> float: ...
    @property
    def last_epoch(self) -> int: ...
    @property
    def optimizer(self) -> Optimizer | None: ...
    def step(self, metric: float | Tensor) -> float: ...
    def get_last_lr(self) -> list[float]: ...
    def state_dict(self) -> dict[str, float]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...

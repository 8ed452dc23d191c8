"""Types of the extension's part of ``netcl.onnx``."""

from os import PathLike
from typing import Any, TypeAlias, final

from netcl._netcl import Tensor

_Path: TypeAlias = str | PathLike[str]
_Port: TypeAlias = tuple[str, str | None, list[str] | None]

@final
class Model:
    def __new__(cls, path: _Path, queue: Any) -> Model: ...
    @property
    def inputs(self) -> list[_Port]: ...
    @property
    def outputs(self) -> list[_Port]: ...
    def stored(self) -> list[tuple[str, str, Tensor]]: ...
    def run(self, inputs: list[Any]) -> list[Any]: ...

def save(
    model: Any,
    path: _Path,
    examples: list[Tensor],
    input_names: list[str],
    output_names: list[str],
    dynamic_batch: bool,
    dynamic_axes: list[tuple[str, int, str]] | None,
    external_data: bool | None,
) -> None: ...
def check(path: _Path) -> tuple[dict[str, int], dict[str, list[str]]]: ...

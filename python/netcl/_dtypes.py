"""The names of dtypes, as strings: ``x.dtype == netcl.float32`` and ``x.dtype == "float32"`` are the same question."""

float32 = "float32"
float = float32
float16 = "float16"
half = float16
float64 = "float64"
double = float64
bfloat16 = "bfloat16"
int32 = "int32"
int = int32
int64 = "int64"
long = int64
bool = "bool"
dtype = str
"""The type of a dtype: ``isinstance(x.dtype, netcl.dtype)``."""

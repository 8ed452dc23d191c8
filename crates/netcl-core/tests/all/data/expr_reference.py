"""Writes expr_reference.txt: values of the elementwise operations, to twice the precision of f64.

Each line: name, the operands' f64 bits, the bits of the nearest f64, the bits of what it lacks to the true value.
Run with Python and mpmath; the functions are written from their definitions, not from our formulas.
"""

import random
import struct

from mpmath import acos, acosh, asin, asinh, atan, atan2, atanh, cos, cosh, erf, erfc, exp, expm1, log, log1p, mp, mpf, pi, sin, sinh, sqrt, tan, tanh

# The textbook formulas cancel in their tails; 600 digits leave nothing to worry about.
mp.dps = 600
SELU_ALPHA = mpf("1.6732632423543772848170429916717")
SELU_SCALE = mpf("1.0507009873554804934193349852946")


def sigmoid(x):
    return 1 / (1 + exp(-x))


def cdf(x):
    return erfc(-x / sqrt(2)) / 2


UNARY = {
    "reciprocal": (lambda x: 1 / x, -100, 100),
    "exp": (exp, -700, 700),
    "expm1": (expm1, -40, 700),
    "log": (log, 0, 1000),
    "log1p": (log1p, -1, 1000),
    "sqrt": (sqrt, 0, 1000),
    "rsqrt": (lambda x: 1 / sqrt(x), 0, 1000),
    "sin": (sin, -1000, 1000),
    "cos": (cos, -1000, 1000),
    "tan": (tan, -1000, 1000),
    "tanh": (tanh, -20, 20),
    "erf": (erf, -6, 6),
    "sigmoid": (sigmoid, -700, 700),
    "logsigmoid": (lambda x: -log1p(exp(-x)), -700, 700),
    "elu": (lambda x: x if x > 0 else expm1(x), -40, 5),
    "selu": (lambda x: SELU_SCALE * (x if x > 0 else SELU_ALPHA * expm1(x)), -40, 5),
    "gelu": (lambda x: x * cdf(x), -37, 20),
    "gelu_tanh": (lambda x: x / 2 * (1 + tanh(sqrt(2 / pi) * (x + mpf("0.044715") * x**3))), -20, 12),
    "silu": (lambda x: x * sigmoid(x), -700, 700),
    "softplus": (lambda x: x if x > 20 else log1p(exp(x)), -700, 50),
    "mish": (lambda x: x * tanh(log1p(exp(x))), -700, 50),
    "softsign": (lambda x: x / (1 + abs(x)), -100, 100),
    "hardsigmoid": (lambda x: min(max((x + 3) / 6, mpf(0)), mpf(1)), -5, 5),
    "hardswish": (lambda x: x * min(max(x + 3, mpf(0)), mpf(6)) / 6, -5, 5),
    "tanhshrink": (lambda x: x - tanh(x), -20, 20),
    "exp2": (lambda x: mpf(2) ** x, -1000, 1000),
    "log2": (lambda x: log(x) / log(mpf(2)), 0, 1000),
    "log10": (lambda x: log(x) / log(mpf(10)), 0, 1000),
    "sinh": (sinh, -700, 700),
    "cosh": (cosh, -700, 700),
    "asin": (asin, -1, 1),
    "acos": (acos, -1, 1),
    "atan": (atan, -100, 100),
    "asinh": (asinh, -1000, 1000),
    "acosh": (acosh, 1, 1000),
    "atanh": (atanh, -1, 1),
    "erfc": (erfc, -6, 26),
}


def bits(x):
    return struct.pack(">d", x).hex()


def line(name, operands, value):
    high = float(value)
    low = float(value - mpf(high))
    return " ".join([name, *map(bits, operands), bits(high), bits(low)])


def main():
    rng = random.Random(1)
    lines = []
    for name, (f, low, high) in UNARY.items():
        points = [rng.uniform(low, high) for _ in range(40)]
        # As many small arguments, where relative accuracy is hard.
        points += [s * 10 ** rng.uniform(-12, 0.7) for _ in range(20) for s in (1, -1)]
        lines += [line(name, [x], f(mpf(x))) for x in points if low < x < high]
    for _ in range(80):
        x, y = rng.uniform(0, 30), rng.uniform(-40, 40)
        lines.append(line("pow", [x, y], mpf(x) ** mpf(y)))
    for name, f in {"atan2": atan2, "hypot": lambda x, y: sqrt(x * x + y * y)}.items():
        for _ in range(40):
            x, y = rng.uniform(-30, 30), rng.uniform(-30, 30)
            lines.append(line(name, [x, y], f(mpf(x), mpf(y))))
    print("\n".join(lines))


if __name__ == "__main__":
    main()

"""Makes optimizers.json with PyTorch: `python optimizers.py > optimizers.json`.

Fifty steps of every optimizer in float64 on parameters of several shapes, with the parameters after some of the steps and the
learning rates of all of them. Starts and gradients follow from `formula`, which the tests compute as well; the fourth parameter
has no gradient in steps 5 to 7. A case may have two groups, clipping, and a schedule that steps after each step.
"""

import json
import math

import torch

# PyTorch keeps counters and products of numbers in the default type.
torch.set_default_dtype(torch.float64)
SHAPES = [(), (1,), (7,), (3, 5), (33,)]
STEPS = 50
SHOWN = [1, 6, 25, 50]
lr_scheduler = torch.optim.lr_scheduler


def formula(i, t, shape):
    size = math.prod(shape)
    values = [((k * 37 + i * 101 + t * 59 + k * k * 13) % 129) / 64 - 1 for k in range(size)]
    return torch.tensor(values, dtype=torch.float64).reshape(shape)


def metric(t):
    return 1.0 / (1 + t // 4) + 0.3 * (t % 3 == 0)


def warmup_cosine(base, warmup, total, lowest):
    def factor(epoch):
        if epoch < warmup:
            return (epoch + 1) / (warmup + 1)
        done = min((epoch - warmup) / (total - warmup), 1.0)
        return (lowest + 0.5 * (base - lowest) * (1 + math.cos(math.pi * done))) / base

    return factor


class Lion(torch.optim.Optimizer):
    """PyTorch has none: the formula of the paper's listing."""

    def __init__(self, params, lr, betas=(0.9, 0.99), weight_decay=0.0, maximize=False):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay, maximize=maximize))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            (beta1, beta2), lr = group["betas"], group["lr"]
            for p in [p for p in group["params"] if p.grad is not None]:
                grad = -p.grad if group["maximize"] else p.grad
                mean = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                p.mul_(1 - lr * group["weight_decay"])
                p.sub_(lr * (mean * beta1 + grad * (1 - beta1)).sign())
                mean.mul_(beta2).add_(grad, alpha=1 - beta2)


def schedule_of(spec, optimizer):
    name, settings = spec["name"], {k: v for k, v in spec.items() if k != "name"}
    if name == "LambdaLR":
        return lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 / (1 + 0.1 * epoch))
    if name == "MultiplicativeLR":
        return lr_scheduler.MultiplicativeLR(optimizer, lambda epoch: 1 - 0.5 / (epoch + 1))
    if name == "WarmupCosine":
        given = settings["warmup_epochs"], settings["max_epochs"], settings["min_lr"]
        return lr_scheduler.LambdaLR(optimizer, [warmup_cosine(group["lr"], *given) for group in optimizer.param_groups])
    if name == "ChainedScheduler":
        return lr_scheduler.ChainedScheduler([schedule_of(part, optimizer) for part in settings["parts"]])
    if name == "SequentialLR":
        parts = [schedule_of(part, optimizer) for part in settings["parts"]]
        return lr_scheduler.SequentialLR(optimizer, parts, settings["milestones"])
    return getattr(lr_scheduler, name)(optimizer, **settings)


def run(case):
    params = [formula(i, 0, shape).clone().requires_grad_() for i, shape in enumerate(SHAPES)]
    options = dict(case["options"])
    given = params
    if case.get("groups"):
        given = [{"params": params[:2]}, {"params": params[2:], "lr": options["lr"] / 4, "weight_decay": 0.05}]
    make = {"Lion": Lion}.get(case["optimizer"]) or getattr(torch.optim, case["optimizer"])
    optimizer = make(given, **options)
    schedule = case.get("schedule") and schedule_of(case["schedule"], optimizer)
    after, rates, norms = {}, [], []
    for t in range(1, STEPS + 1):
        for i, parameter in enumerate(params):
            parameter.grad = None if i == 3 and 5 <= t <= 7 else formula(i, t, SHAPES[i])
        if "max_norm" in case:
            norms.append(torch.nn.utils.clip_grad_norm_(params, case["max_norm"]).item())
        if "clip_value" in case:
            torch.nn.utils.clip_grad_value_(params, case["clip_value"])
        rates.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        if schedule and case["schedule"]["name"] == "ReduceLROnPlateau":
            schedule.step(metric(t))
        elif schedule:
            schedule.step()
        if t in SHOWN:
            after[str(t)] = [value for p in params for value in p.detach().reshape(-1).tolist()]
    return {**case, "rates": rates, "norms": norms, "after": after}


def case(optimizer, name, **options):
    extra = {key: options.pop(key) for key in ("groups", "max_norm", "clip_value", "schedule") if key in options}
    return {"optimizer": optimizer, "name": name, "options": {"lr": 0.02, **options}, **extra}


sgd, adam = {"momentum": 0.9}, {}
cases = [
    case("SGD", "plain"),
    case("SGD", "momentum", momentum=0.9),
    case("SGD", "dampening", momentum=0.9, dampening=0.25, weight_decay=0.1),
    case("SGD", "nesterov", momentum=0.9, nesterov=True, weight_decay=0.1),
    case("SGD", "maximize", momentum=0.5, maximize=True),
    case("SGD", "groups", momentum=0.9, groups=True),
    case("SGD", "clip_value", momentum=0.9, clip_value=0.3),
    case("Adam", "plain"),
    case("Adam", "settings", betas=[0.8, 0.95], eps=1e-4, weight_decay=0.1),
    case("Adam", "amsgrad", amsgrad=True, weight_decay=0.1),
    case("Adam", "maximize", maximize=True),
    case("Adam", "groups", groups=True),
    case("Adam", "max_norm", max_norm=0.5),
    case("AdamW", "plain"),
    case("AdamW", "amsgrad", amsgrad=True, weight_decay=0.3, groups=True),
    case("AdamW", "maximize", maximize=True, betas=[0.7, 0.9]),
    case("RMSprop", "plain"),
    case("RMSprop", "centered", centered=True, alpha=0.9),
    case("RMSprop", "momentum", momentum=0.9, eps=1e-3),
    case("RMSprop", "all", momentum=0.5, centered=True, weight_decay=0.1, groups=True),
    case("RMSprop", "maximize", maximize=True),
    case("Adagrad", "plain"),
    case("Adagrad", "all", lr_decay=0.05, initial_accumulator_value=0.5, weight_decay=0.1, eps=1e-4, groups=True),
    case("Adagrad", "maximize", maximize=True),
    case("NAdam", "plain"),
    case("NAdam", "all", betas=[0.8, 0.95], eps=1e-4, weight_decay=0.1, momentum_decay=0.1, groups=True, maximize=True),
    case("NAdam", "decoupled", weight_decay=0.1, decoupled_weight_decay=True),
    case("RAdam", "plain"),
    case("RAdam", "all", betas=[0.8, 0.95], eps=1e-4, weight_decay=0.1, groups=True, maximize=True),
    case("RAdam", "decoupled", betas=[0.9, 0.9999], weight_decay=0.1, decoupled_weight_decay=True),
    case("Adamax", "plain"),
    case("Adamax", "all", betas=[0.8, 0.95], eps=1e-4, weight_decay=0.1, groups=True, maximize=True),
    case("Adadelta", "plain"),
    case("Adadelta", "all", rho=0.8, eps=1e-4, weight_decay=0.1, groups=True, maximize=True),
    case("Lion", "plain"),
    case("Lion", "all", betas=[0.8, 0.95], weight_decay=0.1, groups=True, maximize=True),
    case("Rprop", "plain"),
    case("Rprop", "all", etas=[0.4, 1.5], step_sizes=[1e-3, 0.1], maximize=True),
    case("ASGD", "plain"),
    case("ASGD", "all", lambd=0.01, alpha=0.6, t0=20, weight_decay=0.1, groups=True, maximize=True),
]
schedules = [
    {"name": "StepLR", "step_size": 7, "gamma": 0.6},
    {"name": "MultiStepLR", "milestones": [5, 9, 9, 31], "gamma": 0.5},
    {"name": "ExponentialLR", "gamma": 0.95},
    {"name": "CosineAnnealingLR", "T_max": 50, "eta_min": 0.001},
    {"name": "WarmupCosine", "warmup_epochs": 8, "max_epochs": 40, "min_lr": 0.002},
    {"name": "LambdaLR"},
    {"name": "ReduceLROnPlateau", "factor": 0.5, "patience": 2, "cooldown": 1, "min_lr": 0.0004},
    {"name": "ReduceLROnPlateau", "mode": "max", "factor": 0.7, "patience": 3, "threshold": 0.1, "threshold_mode": "abs"},
    {"name": "OneCycleLR", "max_lr": 0.1, "total_steps": 50},
    {"name": "OneCycleLR", "max_lr": 0.1, "total_steps": 50, "three_phase": True, "anneal_strategy": "linear"},
    {
        "name": "ChainedScheduler",
        "parts": [{"name": "StepLR", "step_size": 10, "gamma": 0.5}, {"name": "ExponentialLR", "gamma": 0.98}],
    },
    {
        "name": "SequentialLR",
        "milestones": [10, 30],
        "parts": [
            {"name": "LambdaLR"},
            {"name": "CosineAnnealingLR", "T_max": 20, "eta_min": 0.001},
            {"name": "StepLR", "step_size": 5, "gamma": 0.5},
        ],
    },
]
schedules += [
    {"name": "LinearLR", "start_factor": 0.25, "end_factor": 0.75, "total_iters": 20},
    {"name": "ConstantLR", "factor": 0.25, "total_iters": 20},
    {"name": "PolynomialLR", "total_iters": 40, "power": 2.5},
    {"name": "CosineAnnealingWarmRestarts", "T_0": 6, "T_mult": 2, "eta_min": 0.001},
    {"name": "CosineAnnealingWarmRestarts", "T_0": 7},
    {"name": "MultiplicativeLR"},
    {"name": "CyclicLR", "base_lr": 0.01, "max_lr": 0.1, "step_size_up": 5, "step_size_down": 8},
    {"name": "CyclicLR", "base_lr": 0.01, "max_lr": 0.1, "step_size_up": 5, "mode": "triangular2", "base_momentum": 0.7},
    {"name": "CyclicLR", "base_lr": 0.01, "max_lr": 0.1, "step_size_up": 5, "mode": "exp_range", "gamma": 0.97},
    {
        "name": "ChainedScheduler",
        "parts": [{"name": "LinearLR", "total_iters": 8}, {"name": "ConstantLR", "total_iters": 12}, {"name": "ExponentialLR", "gamma": 0.98}],
    },
    {
        "name": "SequentialLR",
        "milestones": [5, 15],
        "parts": [
            {"name": "LinearLR", "total_iters": 5},
            {"name": "CosineAnnealingWarmRestarts", "T_0": 4},
            {"name": "PolynomialLR", "total_iters": 30},
        ],
    },
]
for number, schedule in enumerate(schedules):
    kind, settings = [("SGD", sgd), ("Adam", adam)][number % 2]
    cases.append(case(kind, f"{schedule['name']} {number}", schedule=schedule, groups=True, **settings))

rows = ",\n".join(f"  {json.dumps(run(each))}" for each in cases)
print(json.dumps({"shapes": SHAPES, "metrics": [metric(t) for t in range(1, STEPS + 1)]})[:-1], end="")
print(f', "cases": [\n{rows}\n]}}')

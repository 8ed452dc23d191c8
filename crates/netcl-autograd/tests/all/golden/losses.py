"""Makes losses.json with PyTorch: `python losses.py > losses.json`.

Values and gradients of every loss and option in float64. Inputs are multiples of 1/64, so that float32 holds them exactly;
where a loss is not reduced, the gradient of element i of its result is (i % 5 + 1) / 4.
"""

import json
import math

import torch
import torch.nn.functional as F

torch.manual_seed(20240611)
tensors, cases = {}, []


def draw(shape, low, high):
    grid = torch.rand(shape, dtype=torch.float64) * (high - low) + low
    return (grid * 64).round() / 64


def keep(name, tensor):
    data = [int(v) if float(v).is_integer() else float(v) for v in tensor.reshape(-1).tolist()]
    tensors[name] = {"shape": list(tensor.shape), "data": data}
    return name


def fetch(name, grad):
    data = torch.tensor(tensors[name]["data"], dtype=torch.float64).reshape(tensors[name]["shape"])
    return data.requires_grad_(grad)


def plain(tensor):
    return [None if math.isnan(v) else v for v in tensor.reshape(-1).tolist()]


def case(loss, inputs, target=None, differentiable=None, **options):
    """`target` is the last argument and a name, too; `differentiable` names the inputs whose gradients are stored."""
    names = [*inputs, *([target] if target else [])]
    wanted = inputs if differentiable is None else differentiable
    values = {name: fetch(name, name in wanted) for name in names}
    given = [values[name] for name in names]
    if target and target.startswith("labels"):
        given[-1] = given[-1].long()
    call = {k: fetch(v, False) if k in ("weight", "pos_weight") else v for k, v in options.items()}
    result = getattr(F, loss)(*given, **call)
    upstream = (torch.arange(result.numel(), dtype=torch.float64) % 5 + 1) / 4 if result.dim() else torch.ones(1).double()
    result.backward(upstream.reshape(result.shape))
    grads = {name: plain(values[name].grad) for name in wanted}
    cases.append({"loss": loss, "inputs": names, "options": options, "shape": list(result.shape), "value": plain(result.detach()), "grads": grads})


REDUCTIONS = ("mean", "sum", "none")

# ---- classification ----
keep("logits", draw((4, 5), -3, 3))
keep("labels", torch.tensor([3.0, 0.0, -100.0, 4.0]))
keep("class_weight", draw((5,), 0.25, 2))
keep("soft", torch.tensor([[64, 0, 0, 0, 0], [16, 16, 16, 8, 8], [0, 32, 0, 32, 0], [1, 2, 3, 4, 54]]).double() / 64)
for reduction in REDUCTIONS:
    for weight in ({}, {"weight": "class_weight"}):
        for smoothing in ({}, {"label_smoothing": 0.15}):
            case("cross_entropy", ["logits"], "labels", reduction=reduction, **weight, **smoothing)
            case("cross_entropy", ["logits"], "soft", ["logits", "soft"], reduction=reduction, **weight, **smoothing)
        case("nll_loss", ["logits"], "labels", reduction=reduction, **weight)
keep("image", draw((2, 3, 2, 2), -3, 3))
keep("labels_image", torch.tensor([[[0, 1], [2, 2]], [[1, 0], [2, 1]]]).double())
keep("soft_image", draw((2, 3, 2, 2), 0, 1))
keep("image_weight", draw((3,), 0.25, 2))
for reduction in ("mean", "none"):
    shared = dict(weight="image_weight", label_smoothing=0.25, reduction=reduction)
    case("cross_entropy", ["image"], "labels_image", ignore_index=1, **shared)
    case("cross_entropy", ["image"], "soft_image", **shared)
keep("one", draw((5,), -3, 3))
keep("labels_one", torch.tensor(2.0))
case("cross_entropy", ["one"], "labels_one", weight="class_weight")
keep("labels_ignored", torch.full((4,), -100.0))
for options in ({}, {"weight": "class_weight"}, {"label_smoothing": 0.15}, {"weight": "class_weight", "label_smoothing": 0.15}):
    case("cross_entropy", ["logits"], "labels_ignored", **options)
keep("huge", torch.tensor([[1e4, -1e4, 0.0], [-1e4, 1e4, 1e4], [1e4, 1e4, -1e4], [-1e4, -1e4, -1e4]]).double())
keep("labels_huge", torch.tensor([0.0, 0.0, 2.0, 1.0]))
case("cross_entropy", ["huge"], "labels_huge")
case("cross_entropy", ["huge"], "labels_huge", label_smoothing=0.5, reduction="none")

# ---- regression: with equal elements, and differences right at the bend ----
keep("input", torch.cat([draw((9,), -3, 3), torch.tensor([1.0, 2.0, -1.0])]).double().reshape(3, 4))
keep("target", torch.cat([draw((9,), -3, 3), torch.tensor([1.0, 1.5, -0.5])]).double().reshape(3, 4))
for reduction in REDUCTIONS:
    case("mse_loss", ["input", "target"], reduction=reduction)
    case("l1_loss", ["input", "target"], reduction=reduction)
    case("smooth_l1_loss", ["input", "target"], beta=0.5, reduction=reduction)
    case("huber_loss", ["input", "target"], delta=0.5, reduction=reduction)
case("smooth_l1_loss", ["input", "target"])
case("smooth_l1_loss", ["input", "target"], beta=0.0)
case("huber_loss", ["input", "target"])

# ---- binary: with probabilities of 0 and 1, logits of 0 and of any size ----
keep("probability", draw((2, 4), 0.05, 0.95))
keep("edge", torch.tensor([[0.0, 1.0, 0.0, 1.0], [0.5, 0.25, 0.75, 0.125]]).double())
keep("truth", torch.tensor([[1.0, 0.0, 0.0, 1.0], [0.25, 1.0, 0.0, 0.5]]).double())
keep("score", torch.tensor([[0.0, 1e4, -1e4, 2.5], [-1e4, 1e4, 0.0, -0.5]]).double())
keep("row_weight", draw((2, 1), 0.25, 2))
keep("column_weight", draw((4,), 0.25, 2))
for reduction in REDUCTIONS:
    case("binary_cross_entropy", ["probability", "truth"], reduction=reduction)
    case("binary_cross_entropy", ["probability", "truth"], weight="column_weight", reduction=reduction)
    case("binary_cross_entropy", ["edge", "truth"], differentiable=["edge"], reduction=reduction)
    for weight in ({}, {"weight": "row_weight"}):
        for positive in ({}, {"pos_weight": "column_weight"}):
            case("binary_cross_entropy_with_logits", ["score", "truth"], reduction=reduction, **weight, **positive)

# ---- divergence ----
keep("log_p", draw((3, 4), -4, 0))
keep("log_q", draw((3, 4), -4, 0))
keep("q", torch.tensor([[0, 16, 16, 32], [64, 0, 0, 0], [1, 2, 3, 58]]).double() / 64)
for reduction in (*REDUCTIONS, "batchmean"):
    # The slope at a target of 0 is NaN in PyTorch: only the input's gradient is held against ours.
    case("kl_div", ["log_p", "q"], differentiable=["log_p"], reduction=reduction)
    case("kl_div", ["log_p", "log_q"], log_target=True, reduction=reduction)

# ---- embeddings ----
keep("first", draw((4, 3), -2, 2))
keep("second", draw((4, 3), -2, 2))
keep("third", draw((4, 3), -2, 2))
keep("sign", torch.tensor([1.0, -1.0, -1.0, 0.0]))
for reduction in REDUCTIONS:
    case("cosine_embedding_loss", ["first", "second"], "sign", reduction=reduction)
    case("cosine_embedding_loss", ["first", "second"], "sign", margin=-0.75, reduction=reduction)
    case("triplet_margin_loss", ["first", "second", "third"], margin=2.0, reduction=reduction)
case("triplet_margin_loss", ["first", "second", "third"], margin=2.0, swap=True)
case("triplet_margin_loss", ["first", "second", "third"], margin=2.0, p=1.0, eps=0.125, reduction="none")
case("triplet_margin_loss", ["first", "second", "third"], margin=4.0, p=3.0, swap=True, reduction="none")

# ---- margins ----
keep("sign_each", torch.tensor([1.0, -1.0, -1.0, 1.0]))
keep("better", draw((4,), -2, 2))
keep("worse", draw((4,), -2, 2))
keep("labels_all", torch.tensor([3.0, 0.0, 1.0, 4.0]))
keep("labels_several", torch.tensor([[2, 0, -1, 3, 1], [1, -1, 0, 0, 0], [-1, 4, 3, 2, 1], [4, 3, 3, 0, 2]]).double())
keep("several", torch.tensor([[1, 0, 1, 0, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0, 0], [1, 0, 0, 1, 1]]).double())
for reduction in REDUCTIONS:
    case("margin_ranking_loss", ["better", "worse"], "sign_each", margin=0.5, reduction=reduction)
    case("hinge_embedding_loss", ["better"], "sign_each", reduction=reduction)
    case("soft_margin_loss", ["better"], "sign_each", reduction=reduction)
    case("multi_margin_loss", ["logits"], "labels_all", reduction=reduction)
    case("multi_margin_loss", ["logits"], "labels_all", p=2, margin=0.5, weight="class_weight", reduction=reduction)
    case("multilabel_margin_loss", ["logits"], "labels_several", reduction=reduction)
    case("multilabel_soft_margin_loss", ["logits", "several"], reduction=reduction)
    case("multilabel_soft_margin_loss", ["logits", "several"], weight="class_weight", reduction=reduction)
case("margin_ranking_loss", ["better", "worse"], "sign_each")
case("hinge_embedding_loss", ["better"], "sign_each", margin=0.25)

# ---- likelihoods ----
keep("rate", draw((3, 4), 0.25, 3))
keep("count", torch.tensor([[1, 2, 3, 5], [7, 2, 2, 1], [4, 3, 1, 6]]).double())
keep("variance", draw((3, 4), 0.25, 2))
keep("row_variance", draw((3, 1), 0.25, 2))
for reduction in REDUCTIONS:
    case("poisson_nll_loss", ["log_p", "count"], reduction=reduction)
    case("poisson_nll_loss", ["rate", "count"], log_input=False, reduction=reduction)
    case("gaussian_nll_loss", ["input", "target", "variance"], reduction=reduction)
case("poisson_nll_loss", ["log_p", "count"], full=True)
case("gaussian_nll_loss", ["input", "target", "row_variance"], full=True)
# Variances below eps count as eps, with their gradient.
case("gaussian_nll_loss", ["input", "target", "row_variance"], eps=1.0)

lines = ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases)
print('{"tensors":' + json.dumps(tensors, separators=(",", ":")) + ',\n"cases":[\n' + lines + "\n]}")

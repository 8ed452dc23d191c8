"""Random numbers with probabilities and gradients: ``netcl.distributions`` has what programs use most of
``torch.distributions``.

    policy = Categorical(logits=model(state))
    action = policy.sample()
    loss = -policy.log_prob(action) * reward
"""

from netcl.distributions.categorical import Bernoulli, Categorical
from netcl.distributions.continuous import Exponential, Laplace, Uniform
from netcl.distributions.distribution import Distribution
from netcl.distributions.independent import Independent
from netcl.distributions.kl import kl_divergence
from netcl.distributions.normal import LogNormal, MultivariateNormal, Normal

__all__ = [
    "Bernoulli", "Categorical", "Distribution", "Exponential", "Independent", "Laplace", "LogNormal", "MultivariateNormal",
    "Normal", "Uniform", "kl_divergence",
]  # fmt: skip

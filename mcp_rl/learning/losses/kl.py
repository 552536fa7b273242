"""The KL to the base, estimated at the tokens that the policy sampled (Schulman, Approximating KL divergence, 2020)."""

from torch import Tensor


def kl_to_reference(logprobs: Tensor, reference: Tensor) -> Tensor:
    """The k3 estimate of KL(policy, reference) in nats: e^d - d - 1 with d = log ref - log p, [S].

    Never negative, unbiased; equation 4 of Shao et al., DeepSeekMath, 2024.
    """
    difference = reference - logprobs
    return difference.exp() - difference - 1

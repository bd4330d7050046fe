"""Muon for matrices, Adam for the rest.

Source: Muon (Keller Jordan, 2024, github.com/KellerJordan/Muon), scaled as in Moonlight (arXiv 2502.16982) so that both
parts take the same learning rate.
"""

# torch leaves much of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)


class MuonAdam:
    """One optimizer over named parameters; matrices whose name holds `embed` go to Adam.

    Args:
        parameters: those that learn, and others.
        decay: weight decay of matrices.
        scale: factor on the learning rate by a parameter's name.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[str, nn.Parameter]],
        *,
        decay: float = 0.01,
        scale: Callable[[str], float] = lambda _: 1.0,
    ) -> None:
        named = [(name, parameter) for name, parameter in parameters if parameter.requires_grad]
        plain = [
            {"params": [parameter], "scale": scale(name)}
            for name, parameter in named
            if parameter.ndim != 2 or "embed" in name
        ]
        self._scale = {parameter: scale(name) for name, parameter in named}
        matrices = [parameter for name, parameter in named if parameter.ndim == 2 and "embed" not in name]
        self._decay = decay
        self._adam = torch.optim.AdamW(plain, lr=0.0, betas=(0.9, 0.98), weight_decay=0.0)
        self._groups: dict[tuple[int, int], list[nn.Parameter]] = {}
        for parameter in matrices:
            self._groups.setdefault((parameter.shape[0], parameter.shape[1]), []).append(parameter)
        self._momentum = {shape: torch.zeros(len(group), *shape) for shape, group in self._groups.items()}
        self._everything = [parameter for _, parameter in named]

    @torch.no_grad()
    def step(self, rate: float, *, clip: float = 1.0) -> float:
        """Apply the gradients and clear them; gives their norm before clipping."""
        norm = float(nn.utils.clip_grad_norm_(self._everything, clip))
        for group in self._adam.param_groups:
            group["lr"] = rate * group["scale"]
        self._adam.step()
        for shape, group in self._groups.items():
            gradient = torch.stack([torch.zeros(shape) if p.grad is None else p.grad for p in group])
            momentum = self._momentum[shape]
            momentum.lerp_(gradient, 0.05)
            update = _orthogonal(gradient.lerp(momentum, 0.95)).float() * (0.2 * max(shape) ** 0.5)
            for parameter, change in zip(group, update, strict=True):
                own = rate * self._scale[parameter]
                parameter.mul_(1 - own * self._decay).sub_(change, alpha=own)
        for parameter in self._everything:
            parameter.grad = None
        return norm

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs."""
        return {"adam": self._adam.state_dict(), "momentum": self._momentum}

    def load(self, state: dict[str, Any]) -> None:
        """Take a checkpoint's state back."""
        self._adam.load_state_dict(state["adam"])
        self._momentum = state["momentum"]


def _orthogonal(matrices: Tensor) -> Tensor:
    """The nearest semi-orthogonal matrices, by five Newton-Schulz steps in bfloat16."""
    a, b, c = _COEFFICIENTS
    x = matrices.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT.contiguous() if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x

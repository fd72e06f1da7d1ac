"""One optimiser for all algorithms: Adam over one flat parameter vector.

Small networks are bound by the number of operations, not by arithmetic. With parameters and gradients each in one
contiguous vector, zeroing, averaging between learners, the norm, clipping and Adam are one operation each instead of
one per layer. Adam is the kernel behind `torch.optim.Adam(fused=True)`, called directly: the class around it costs
more than the kernel does here, and its construction loads the compiler, most of a second.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from erlcli.core.collective import ALONE, Collective
from erlcli.core.machine_code import tracing
from erlcli.core.readback import Readback
from erlcli.errors import DivergedError

BETAS = (0.9, 0.999)


class Optimizer:
    """Adam (arXiv 1412.6980) with gradient-norm clipping.

    The modules' parameters become views of one vector; move them to their device before.

    Args:
        modules: name to module; names are used in messages about divergence.
        eps: Adam's epsilon.
        betas: Adam's decay rates.
        max_grad_norm: gradients are scaled down to this Euclidean norm; None leaves them.
        collective: the group that averages gradients.
    """

    def __init__(
        self,
        modules: dict[str, nn.Module],
        *,
        eps: float = 1e-5,
        betas: tuple[float, float] = BETAS,
        max_grad_norm: float | None = None,
        collective: Collective = ALONE,
    ) -> None:
        self.names, parameters = _parameters(modules)
        self.flat = flat = torch.cat([p.detach().reshape(-1) for p in parameters])
        self.grad = torch.zeros_like(flat)
        self.views: list[tuple[Tensor, Tensor]] = []
        offset = 0
        for p in parameters:
            size = p.numel()
            p.data = self.flat[offset : offset + size].view_as(p)
            p.grad = self.grad[offset : offset + size].view_as(p)
            self.views.append((p, p.grad))
            offset += size
        self.max_grad_norm = max_grad_norm
        self.collective = collective
        self.eps = eps
        self.betas = betas
        self.exp_avg = torch.zeros_like(flat)
        self.exp_avg_sq = torch.zeros_like(flat)
        self.adam_steps = flat.new_zeros(())
        self.updates = 0
        self._checks: list[Readback] = []  # of earlier rollouts, on their way
        self._worst_norm = flat.new_zeros(())
        self._norm_sum = flat.new_zeros(())
        self._norms = 0
        self._one = flat.new_ones(())

    @staticmethod
    def scalar(device: torch.device) -> Tensor:
        """A step size that can change under a graph that was captured, of the type that Adam's kernel takes."""
        return torch.zeros((), dtype=torch.float32 if device.type == "cuda" else torch.float64, device=device)

    def count(self, steps: int) -> None:
        """Steps were taken by `apply`."""
        self.updates += steps
        self._norms += steps

    def apply(self, loss: Tensor, learning_rate: float | Tensor) -> None:
        """One gradient step on a scalar loss: work on the device alone, to be captured or compiled; see `count`."""
        if tracing():
            self._apply_formula(loss, learning_rate)
            return
        self.grad.zero_()
        torch.autograd.backward(loss)
        self.collective.mean_(self.grad)
        norm = torch.linalg.vector_norm(self.grad)
        if self.max_grad_norm is not None:
            # fmin takes 1 where the norm is NaN: only the culprit's weights are lost, and can be named.
            self.grad.mul_(torch.fmin(self.max_grad_norm / (norm + 1e-6), self._one))
        self.adam_steps += 1
        torch._fused_adam_(
            [self.flat],
            [self.grad],
            [self.exp_avg],
            [self.exp_avg_sq],
            [],
            [self.adam_steps],
            lr=learning_rate,
            beta1=self.betas[0],
            beta2=self.betas[1],
            weight_decay=0.0,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
        )
        self._norm_sum += norm
        torch.maximum(self._worst_norm, norm, out=self._worst_norm)  # NaN wins over any number

    def _apply_formula(self, loss: Tensor, learning_rate: float | Tensor) -> None:
        """`apply` without what a compiler can't look into: gradients that add up in place, and Adam's kernel."""
        parameters = [p for p, _ in self.views]
        each = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        with torch.no_grad():
            grad = torch.cat([g.reshape(-1) for g in each])
            norm = torch.linalg.vector_norm(grad)
            if self.max_grad_norm is not None:
                grad = grad * _once(torch.fmin(self.max_grad_norm / (norm + 1e-6), self._one))
            self.adam_steps += 1
            mean_decay, square_decay = self.betas
            self.exp_avg.lerp_(grad, 1.0 - mean_decay)
            self.exp_avg_sq.mul_(square_decay).addcmul_(grad, grad, value=1.0 - square_decay)
            steps = self.adam_steps.double()  # as the kernel has it: 1 - 0.999 has few digits left
            rate = _once((learning_rate / (1.0 - mean_decay**steps)).to(self.flat.dtype))
            root = _once((1.0 - square_decay**steps).sqrt().to(self.flat.dtype))
            self.flat.sub_(rate * self.exp_avg / (self.exp_avg_sq.sqrt() / root + self.eps))
            self._norm_sum += norm
            torch.maximum(self._worst_norm, norm, out=self._worst_norm)

    def mean_grad_norm(self) -> Tensor:
        """Mean norm before clipping since the last call; a device scalar, read without a sync."""
        mean = self._norm_sum / max(self._norms, 1)
        self._norm_sum.zero_()
        self._norms = 0
        return mean

    def check_finite(self) -> None:
        """Called once a rollout. A GPU tells of the rollout before, while it works on this one; see `settle`.

        Raises:
            DivergedError: a gradient since the last call, or a parameter, is NaN or infinite; it is named.
        """
        self._checks.append(Readback(torch.isfinite(self._worst_norm + self.flat.sum())))
        while self._checks and (len(self._checks) > 1 or self._checks[0].ready):
            self._check(self._checks.pop(0))

    def settle(self) -> None:
        """Wait until all rollouts so far are checked.

        Raises:
            DivergedError: see `check_finite`.
        """
        while self._checks:
            self._check(self._checks.pop(0))

    def _check(self, arrived: Readback) -> None:
        if bool(arrived.get()):
            return
        raise DivergedError(
            f"training diverged: {self._culprit()} is not finite after {self.updates} updates",
            expected="finite gradients and weights",
            found="NaN or Inf",
            remedy="the last good checkpoint is kept; lower algorithm.learning_rate, set algorithm.max_grad_norm, "
            "or check the env's rewards (erl envs check)",
        )

    def _culprit(self) -> str:
        for kind, position in (("weight", 0), ("gradient", 1)):
            for name, view in zip(self.names, self.views, strict=True):
                if not bool(torch.isfinite(view[position]).all()):
                    return f"{kind} {name}"
        return "a gradient norm"

    def state_dict(self) -> dict[str, Tensor | int]:
        """Moments and counters; the parameters belong to their modules."""
        return {
            "updates": self.updates,
            "adam_steps": self.adam_steps.clone(),
            "exp_avg": self.exp_avg.clone(),
            "exp_avg_sq": self.exp_avg_sq.clone(),
        }

    def load_state_dict(self, state: dict[str, Tensor | int]) -> None:
        """The inverse of `state_dict`."""
        self.updates = int(state["updates"])
        for name in ("adam_steps", "exp_avg", "exp_avg_sq"):
            getattr(self, name).copy_(torch.as_tensor(state[name]))


def _parameters(modules: dict[str, nn.Module]) -> tuple[list[str], list[nn.Parameter]]:
    named: Iterable[tuple[str, nn.Parameter]] = (
        (f"{prefix}.{name}", p) for prefix, module in modules.items() for name, p in module.named_parameters()
    )
    pairs = list(named)
    return [name for name, _ in pairs], [p for _, p in pairs]


def _once(number: Tensor) -> Tensor:
    """A scalar that compiled code works out once and keeps in memory, not anew in each round of a loop that needs it.

    TorchInductor puts whatever is elementwise into the loop that reads it, powers of a double too, which then take ten
    times as long as all the rest; but what is viewed by its strides has to be in memory.
    """
    return number.as_strided((), ())

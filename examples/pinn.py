"""The heat equation solved by a network that never sees a solution.

Shows: derivatives of a network by its inputs, twice, inside a loss. `u_t = 0.1 u_xx` on [0, 1] with `u(0, x) = sin(pi x)` and cold
ends has the solution `exp(-0.1 pi^2 t) sin(pi x)`; the loss is the equation's residual at random points, built from
`autograd.grad` applied to its own result, and `backward()` makes it third order. Raissi et al. 2019.

    python examples/pinn.py [--quick]
"""

import argparse
import math

from rich.progress import track

import tapejax as tj
from tapejax import nn

CONDUCTIVITY = 0.1


class Temperature(nn.Module):
    """A network with the start and the cold ends built in: sin(pi x) + t x (1 - x) net(t, x)."""

    def __init__(self, width=32):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
        )

    def forward(self, t, x):
        return tj.sin(math.pi * x) + t * x * (1 - x) * self.net(tj.cat([t, x], dim=1))


def by(u, x):
    """Return du/dx at every point, ready to be differentiated again."""
    (slope,) = tj.autograd.grad(u.sum(), x, create_graph=True)
    return slope


def residual(u, n):
    """How far `u` is from solving the equation, at `n` random points."""
    t, x = tj.rand(n, 1).requires_grad_(), tj.rand(n, 1).requires_grad_()
    heat = u(t, x)
    return by(heat, t) - CONDUCTIVITY * by(by(heat, x), x)


def largest_error(u):
    t, x = tj.meshgrid(tj.linspace(0, 1, 41), tj.linspace(0, 1, 41), indexing="ij")
    t, x = t.reshape(-1, 1), x.reshape(-1, 1)
    exact = tj.exp(-CONDUCTIVITY * math.pi**2 * t) * tj.sin(math.pi * x)
    with tj.no_grad():
        return (u(t, x) - exact).abs().max().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few steps")
    args = parser.parse_args()

    tj.manual_seed(0)
    u = Temperature()
    opt = tj.optim.Adam(u.parameters(), lr=5e-3)
    steps = 20 if args.quick else 1500
    schedule = tj.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    before = largest_error(u)
    for _ in track(range(steps), description="solving"):
        opt.zero_grad()
        loss = (residual(u, 256) ** 2).mean()
        loss.backward()
        opt.step()
        schedule.step()
    print(f"mean squared residual {loss.item():.2e}")
    print(f"largest error against the exact solution: {before:.1e} before, {largest_error(u):.1e} after")


if __name__ == "__main__":
    main()

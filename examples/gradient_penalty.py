"""A Wasserstein GAN with gradient penalty on eight Gaussians in the plane.

Shows: a gradient inside a loss. The critic's slope between real and made points is computed with
`autograd.grad(..., create_graph=True)`, pushed towards 1, and differentiated again by `backward()`: second order through a
network, in an ordinary loop. Gulrajani et al. 2017.

    python examples/gradient_penalty.py [--quick]
"""

import argparse
import math

from rich.progress import track

import tapejax as tj
from tapejax import nn


def mlp(inputs, outputs, width=64):
    return nn.Sequential(
        nn.Linear(inputs, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, outputs)
    )


def real_points(n):
    """Draw from eight Gaussians on the circle of radius 2."""
    angle = tj.randint(8, (n,)) * (2 * math.pi / 8)
    return 2 * tj.stack([angle.cos(), angle.sin()], dim=1) + 0.1 * tj.randn(n, 2)


def slope_penalty(critic, real, made):
    """Return the mean of (|gradient of the critic| - 1)^2 at random points between real and made ones."""
    share = tj.rand(len(real), 1)
    between = (share * real + (1 - share) * made).requires_grad_()
    (slope,) = tj.autograd.grad(critic(between).sum(), between, create_graph=True)
    return ((slope.norm(dim=1) - 1) ** 2).mean()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few steps")
    args = parser.parse_args()

    tj.manual_seed(0)
    generator, critic = mlp(2, 2), mlp(2, 1)
    opt_g = tj.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
    opt_c = tj.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9))
    batch = 128

    for _ in track(range(20 if args.quick else 1500), description="training"):
        for _ in range(3):
            real, made = real_points(batch), generator(tj.randn(batch, 2)).detach()
            penalty = slope_penalty(critic, real, made)
            loss_c = critic(made).mean() - critic(real).mean() + 1.0 * penalty
            opt_c.zero_grad()
            loss_c.backward()
            opt_c.step()
        loss_g = -critic(generator(tj.randn(batch, 2))).mean()
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()

    with tj.no_grad():
        radius = generator(tj.randn(2000, 2)).norm(dim=1)
    print(f"distance between the distributions {-loss_c.item():.3f}, slope penalty {penalty.item():.3f}")
    print(f"radius of the made points {radius.mean().item():.2f} +- {radius.std().item():.2f} (real: 2.00 +- 0.10)")


if __name__ == "__main__":
    main()

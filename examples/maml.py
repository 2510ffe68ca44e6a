"""Learning to learn sines: model-agnostic meta-learning.

Shows: differentiating through gradient steps. Each task is a sine of its own amplitude and phase; the inner loop fits ten of
its points with plain gradient steps under `create_graph=True`, the outer loop moves the common start so that the fit works on
new points. The inner update is ordinary Python on tensors: no optimizer class, no functional rewrite. Finn et al. 2017.

    python examples/maml.py [--quick]
"""

import argparse
import math

from rich.progress import track

import tapejax as tj


def start_weights(width=40):
    def layer(inputs, outputs):
        return [tj.randn(inputs, outputs) / math.sqrt(inputs), tj.zeros(outputs)]

    return [w.requires_grad_() for w in layer(1, width) + layer(width, width) + layer(width, 1)]


def predict(weights, x):
    w1, b1, w2, b2, w3, b3 = weights
    return tj.relu(tj.relu(x @ w1 + b1) @ w2 + b2) @ w3 + b3


def new_task():
    """A sine with amplitude in [0.1, 5] and phase in [0, pi]: a function that draws points of it."""
    amplitude, phase = 0.1 + 4.9 * tj.rand(1), math.pi * tj.rand(1)

    def draw(n):
        x = 10 * tj.rand(n, 1) - 5
        return x, amplitude * tj.sin(x + phase)

    return draw


def adapt(weights, x, y, steps=1, lr=0.01, create_graph=True):
    """Return weights after a few gradient steps on (x, y), as a differentiable function of `weights`."""
    for _ in range(steps):
        loss = ((predict(weights, x) - y) ** 2).mean()
        grads = tj.autograd.grad(loss, weights, create_graph=create_graph)
        weights = [w - lr * g for w, g in zip(weights, grads, strict=True)]
    return weights


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few steps")
    args = parser.parse_args()

    tj.manual_seed(0)
    weights = start_weights()
    opt = tj.optim.Adam(weights, lr=1e-3)
    tasks = 8
    for _ in track(range(20 if args.quick else 2000), description="meta-training"):
        opt.zero_grad()
        for _ in range(tasks):  # gradients of all tasks add up in .grad
            task = new_task()
            fast = adapt(weights, *task(10))
            x, y = task(10)
            (((predict(fast, x) - y) ** 2).mean() / tasks).backward()
        opt.step()

    print("mean squared error on 50 new sines, after k gradient steps on ten points:")
    trials = [(task(10), task(100)) for task in (new_task() for _ in range(50))]
    for steps in (0, 1, 5):
        total = 0.0
        for (x, y), (x_new, y_new) in trials:
            fast = adapt(weights, x, y, steps, create_graph=False)
            with tj.no_grad():
                total += ((predict(fast, x_new) - y_new) ** 2).mean().item()
        print(f"  k = {steps}: {total / len(trials):.3f}")


if __name__ == "__main__":
    main()

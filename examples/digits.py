"""Handwritten digits: a small convolutional net, the plain training loop, and a proof that its gradient is right.

Shows: tapejax.nn, tapejax.optim with a schedule, an ordinary loop that compiles itself (one program per step, no decorator), and
`autograd.gradcheck`, which compares every derivative with finite differences. The data (1,797 images of 8 x 8) comes with sklearn.

    python examples/digits.py            # at least 96 % on unseen digits, in under a minute
    python examples/digits.py --quick    # fewer epochs, for CI
"""

import argparse
import sys

import numpy as np
from rich.progress import track
from sklearn.datasets import load_digits

import tapejax as tj
import tapejax.nn.functional as F
from tapejax import nn


class Net(nn.Module):
    """Two convolutions and a linear layer: 6,090 weights."""

    def __init__(self, width=16):
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.head = nn.Linear(2 * width * 4, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.head(x.flatten(1))


def load():
    """Images in [0, 1] and labels; every fifth one is kept for the test."""
    digits = load_digits()
    x = tj.tensor(digits.images, dtype=tj.float32).unsqueeze(1) / 16
    y = tj.tensor(digits.target)
    test = np.arange(len(digits.target)) % 5 == 0
    keep, held = tj.tensor(np.flatnonzero(~test)), tj.tensor(np.flatnonzero(test))
    return (x[keep], y[keep]), (x[held], y[held])


def train(model, x, y, epochs, batch=64):
    steps = len(x) // batch
    opt = tj.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=1e-2)
    schedule = tj.optim.lr_scheduler.OneCycleLR(opt, max_lr=5e-3, total_steps=epochs * steps)
    for _ in track(range(epochs), description="training"):
        order = tj.randperm(len(x))
        for k in range(steps):
            rows = order[k * batch : (k + 1) * batch]
            opt.zero_grad()
            loss = F.cross_entropy(model(x[rows]), y[rows])
            loss.backward()
            opt.step()
            schedule.step()
    return loss.item()


def accuracy(model, x, y):
    model.eval()
    with tj.no_grad():
        return (model(x).argmax(1) == y).double().mean().item()


def gradient_is_right(x, y):
    """Check d(loss) / d(every weight) of a narrow net in double precision, on three images."""
    model = Net(width=2).double()
    x = x.double()

    def loss(*weights):  # gradcheck moves the model's own weights
        return F.cross_entropy(model(x), y)

    return tj.autograd.gradcheck(loss, tuple(model.parameters()), raise_exception=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer epochs")
    args = parser.parse_args()

    tj.manual_seed(0)
    (x, y), (x_test, y_test) = load()
    model = Net()
    loss = train(model, x, y, epochs=8 if args.quick else 20)
    score = accuracy(model, x_test, y_test)
    right = gradient_is_right(x[:3], y[:3])
    print(f"last loss {loss:.4f}, test accuracy {score:.2%} ({'good' if score >= 0.96 else 'below 96 %'})")
    print(f"gradcheck of the loss in float64: {'passed' if right else 'FAILED'}")
    return 0 if score >= 0.96 and right else 1


if __name__ == "__main__":
    sys.exit(main())

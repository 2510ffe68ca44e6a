"""A recurrent network that learns to spell, one character at a time.

Shows: a plain Python loop over time. Each step of the loop records the same operations on the next character; the loop over a
chunk becomes one program, and its hidden state is detached before the next chunk (truncated backpropagation through time),
so the graph never grows beyond a chunk.

    python examples/char_rnn.py [--quick]
"""

import argparse

from rich.progress import track

import tapejax as tj
import tapejax.nn.functional as F
from tapejax import nn

TEXT = """the miller keeps a tape beside the mill and writes on it what every wheel has done.
the water turns the wheel, the wheel turns the stone, the stone turns the grain to meal.
when evening comes he reads the tape from its end to its start and asks of every turn:
how much more meal, had you turned a little more? the stone answers to the wheel,
the wheel answers to the water, and in the morning the miller opens the gate a little wider.
"""
ALPHABET = sorted(set(TEXT))


class Speller(nn.Module):
    """The oldest recurrent network: h = tanh(W [letter, h] + b) (Elman 1990)."""

    def __init__(self, letters, width=96):
        super().__init__()
        self.embed = nn.Embedding(letters, width)
        self.mix = nn.Linear(2 * width, width)
        self.head = nn.Linear(width, letters)
        self.width = width

    def start(self, batch):
        return tj.zeros(batch, self.width)

    def forward(self, letters, h):
        """Take one letter per row, (N,), and the hidden state, (N, H); return scores of the next letter and the new state."""
        h = tj.tanh(self.mix(tj.cat([self.embed(letters), h], dim=1)))
        return self.head(h), h


def write(model, opening, length):
    """Let the model go on from `opening`, always with the likeliest letter."""
    out = opening
    with tj.no_grad():
        h = model.start(1)
        for letter in opening[:-1]:
            _, h = model(tj.tensor([ALPHABET.index(letter)]), h)
        for _ in range(length):
            scores, h = model(tj.tensor([ALPHABET.index(out[-1])]), h)
            out += ALPHABET[scores.argmax().item()]
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few passes")
    args = parser.parse_args()

    tj.manual_seed(0)
    model = Speller(len(ALPHABET))
    opt = tj.optim.Adam(model.parameters(), lr=3e-3)
    rows, chunk = 4, 16  # four places are read in parallel, 16 letters between updates
    ids = tj.tensor([ALPHABET.index(c) for c in TEXT])
    length = len(TEXT) // rows // chunk * chunk

    for _ in track(range(3 if args.quick else 300), description="reading"):
        begin_at = tj.randint(len(TEXT), ())  # each pass starts somewhere else in the text, as if it were a ring
        letters = ids[(begin_at + tj.arange(rows * length + 1)) % len(TEXT)]
        inputs, targets = letters[:-1].reshape(rows, length).t(), letters[1:].reshape(rows, length).t()
        h = model.start(rows)
        for begin in range(0, length, chunk):
            h = h.detach()  # gradients stop here; the numbers go on
            loss = 0.0
            for t in range(begin, begin + chunk):
                scores, h = model(inputs[t], h)
                loss = loss + F.cross_entropy(scores, targets[t])
            opt.zero_grad()
            (loss / chunk).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()

    print(f"loss per letter {loss.item() / chunk:.3f} (guessing: {tj.tensor(float(len(ALPHABET))).log().item():.3f})")
    print(write(model, "when evening", 100))


if __name__ == "__main__":
    main()

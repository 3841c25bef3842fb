"""Train a classifier on the files of a directory, stop in the middle, and go on exactly.

    python examples/train.py [DIR] [--workers N] [--epochs N]

The files of DIR (/usr/share/doc) become a container. A linear model learns the kind of a file, as
its name has it, from the histogram of its bytes. It is trained twice: at one go, and with a stop
after some batches, of which only a checkpoint is left. Both end with equal weights. With PyTorch
its DataLoader and optimizer are used, else numpy and the small loader of the tests.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import winkfs

KINDS = ("compressed", "copyright", "html", "other")
MOST_FILES = 5000
MOST_BYTES = 64 << 10  # of a file that is taken
RATE = 0.5
TORCH = find_spec("torch") is not None


def kind_of(path: str) -> str:
    name = path.rpartition("/")[2]
    if name.endswith((".gz", ".xz", ".zst")):
        return "compressed"
    if name.endswith((".html", ".htm")):
        return "html"
    return "copyright" if name == "copyright" else "other"


def documents(top: str) -> Iterator[tuple[Any, ...]]:
    """Yield name, content, time and columns of the files below a directory."""
    found = sorted(Path(here) / name for here, _, names in os.walk(top) for name in names)
    count = 0
    for path in found:
        if path.is_file() and not path.is_symlink() and path.stat().st_size <= MOST_BYTES:
            name = str(path.relative_to(top))
            yield name, path.read_bytes(), None, {"kind": kind_of(name)}
            count += 1
            if count == MOST_FILES:
                return


def sample(row: dict[str, Any]) -> tuple[Any, int]:
    """Return the histogram of a file, and the number of its kind."""
    counts = np.bincount(np.frombuffer(row["content"], np.uint8), minlength=256)
    return (counts / max(len(row["content"]), 1)).astype(np.float32), KINDS.index(row["kind"])


def joined(batch: list[tuple[Any, int]]) -> tuple[Any, Any]:
    histograms, kinds = zip(*batch, strict=True)
    return np.stack(histograms), np.array(kinds)


# --- the model, in PyTorch or numpy ---


class TorchModel:
    def __init__(self) -> None:
        import torch

        torch.manual_seed(0)
        self.net = torch.nn.Linear(256, len(KINDS))
        self.optimizer = torch.optim.SGD(self.net.parameters(), RATE, momentum=0.9)

    def learn(self, histograms: Any, kinds: Any) -> float:
        import torch

        self.optimizer.zero_grad()
        scores = self.net(torch.as_tensor(histograms))
        loss = torch.nn.functional.cross_entropy(scores, torch.as_tensor(kinds))
        loss.backward()  # type: ignore[no-untyped-call,unused-ignore]
        self.optimizer.step()
        return float(loss.item())

    def save(self, path: Path, loader: dict[str, Any]) -> None:
        import torch

        state = {"net": self.net.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state | {"loader": loader}, path)

    def load(self, path: Path) -> dict[str, Any]:
        import torch

        state = torch.load(path, weights_only=True)
        self.net.load_state_dict(state["net"])
        self.optimizer.load_state_dict(state["optimizer"])
        found: dict[str, Any] = state["loader"]
        return found

    @property
    def weights(self) -> Any:
        return self.net.weight.detach().numpy()


class NumpyModel:
    def __init__(self) -> None:
        self.weights = np.zeros((256, len(KINDS)), np.float32)

    def learn(self, histograms: Any, kinds: Any) -> float:
        scores = np.exp(histograms @ self.weights)
        scores /= scores.sum(1, keepdims=True)
        each = np.arange(len(kinds))
        loss = -np.log(scores[each, kinds]).mean()
        scores[each, kinds] -= 1
        self.weights -= RATE * histograms.T @ scores / len(kinds)
        return float(loss)

    def save(self, path: Path, loader: dict[str, Any]) -> None:
        with path.open("wb") as file:
            np.savez(file, weights=self.weights, loader=json.dumps(loader))

    def load(self, path: Path) -> dict[str, Any]:
        with np.load(path) as state:
            self.weights = state["weights"]
            found: dict[str, Any] = json.loads(str(state["loader"]))
        return found


def batches(rows: winkfs.Rows, sampler: winkfs.Sampler, workers: int) -> Iterable[Any]:
    """Return the batches of an epoch, of which some are read ahead."""
    if TORCH:
        from torch.utils.data import DataLoader

        data: Any = rows
        found: Iterable[Any]
        found = DataLoader(data, batch_sampler=sampler, num_workers=workers, collate_fn=joined)
        return found
    sys.path.append(str(Path(__file__).resolve().parent.parent / "tests/loaders"))
    SmallLoader = import_module("miniloader").DataLoader

    return map(joined, SmallLoader(rows, sampler, workers))


def train(
    base: Path, epochs: int, workers: int, checkpoint: Path, stop: int = 0
) -> tuple[Any, list[float]]:
    """Train from the checkpoint, if there is one -> the weights, and the losses of this run.

    stop  batches after which a checkpoint is written, and the run ends; 0: none
    """
    rows = winkfs.Rows(base, columns=["kind"], decode=sample)
    sampler = winkfs.Sampler(rows, batch=32, seed=1, block=64, window=16)
    model: Any = TorchModel() if TORCH else NumpyModel()
    if checkpoint.exists():
        sampler.load_state_dict(model.load(checkpoint))
    losses = list[float]()
    while sampler.epoch < epochs:
        for histograms, kinds in sampler.over(batches(rows, sampler, workers)):
            losses.append(model.learn(histograms, kinds))
            if len(losses) == stop:
                model.save(checkpoint, sampler.state_dict())
                return model.weights, losses
    return model.weights, losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("dir", nargs="?", default="/usr/share/doc")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        base, checkpoint = Path(folder, "corpus"), Path(folder, "checkpoint")
        with winkfs.create(base, columns={"kind": "string"}) as corpus:
            corpus.put_many(documents(given.dir))
        rows = winkfs.Rows(base)
        if not len(rows):
            sys.exit(f"{given.dir}: there are no files of at most {MOST_BYTES >> 10} KiB")
        print(f"{len(rows)} files, {'PyTorch' if TORCH else 'numpy'}, {given.workers} workers")
        whole, losses = train(base, given.epochs, given.workers, checkpoint)
        print(f"at one go: {len(losses)} batches, loss {losses[0]:.3f} .. {losses[-1]:.3f}")
        stop = max(len(losses) // 2, 1)
        _, head = train(base, given.epochs, given.workers, checkpoint, stop)
        print(f"stopped after {len(head)} batches, with a checkpoint")
        resumed, rest = train(base, given.epochs, max(given.workers - 1, 0), checkpoint)
        same = head + rest == losses and np.array_equal(resumed, whole)
        print(f"went on for {len(rest)} batches with {max(given.workers - 1, 0)} workers: "
              f"{'equal' if same else 'OTHER'} losses and weights")  # fmt: skip
        sys.exit(not same)


if __name__ == "__main__":
    main()

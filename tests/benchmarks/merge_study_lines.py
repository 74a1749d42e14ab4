"""The metric of ``merge_study.py`` on the source code: which generated lines ``ast.parse`` accepts.

A prompt is 64 bytes of the split that end with a line's indentation. The network goes on for 63 bytes, of which the
first line counts. Bytes are drawn from what it predicts, with the same random numbers for every candidate: the largest
of logit + Gumbel noise is such a draw. ``STUDY_DATA`` and ``STUDY_COUNT`` in the environment name the library's folder
and how many prompts of ``val`` the splits ``search`` and ``select`` have each; ``test`` has 1,000.
"""

import ast
import os
import re
import warnings
from functools import cache
from pathlib import Path

import numpy as np

from tests.benchmarks.source_code import CONTEXT, HEADS, text_of

_PROMPT = CONTEXT // 2
_TESTED = 1000
_LINE = re.compile(rb"\n *(?=[^ \n])")  # ends where a line that is not blank begins


def score(tensors, split):
    """1 for each line that is accepted, else 0."""
    prompts, noise = _drawn(split, int(os.environ["STUDY_COUNT"]))
    return [float(is_accepted(line)) for line in generate(tensors, prompts, noise)]


@cache
def _drawn(split, count):
    """Prompts, uint8 (n, 64), and noise, float32 (63, n, 256)."""
    text = text_of(Path(os.environ["STUDY_DATA"]), "test" if split == "test" else "val")
    ends = np.array([found.end() for found in _LINE.finditer(text.tobytes()) if found.end() >= _PROMPT])
    ends = np.random.default_rng(0).permutation(ends)
    ends = {"search": ends[:count], "select": ends[count : 2 * count], "test": ends[:_TESTED]}[split]
    noise = np.random.default_rng(1).gumbel(size=(CONTEXT - _PROMPT - 1, len(ends), 256)).astype(np.float32)
    return np.stack([text[end - _PROMPT : end] for end in ends]), noise


def generate(tensors, prompts, noise):
    """The bytes that follow each prompt; see ``source_code.py`` for the network, which this follows in NumPy."""
    network, made = Transformer(tensors), []
    logits = network.read(prompts)
    for drawn in noise:
        made.append((logits + drawn).argmax(axis=1).astype(np.uint8))
        logits = network.read(made[-1][:, None])
    return [bytes(line) for line in np.stack(made, axis=1)]


def is_accepted(line):
    """Whether a line ends and is a statement by itself, or with a body where it ends in a colon; comments are none."""
    line, end, _ = line.partition(b"\n")
    code = line.strip() + b" pass" * line.rstrip().endswith(b":")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        try:
            return bool(end and ast.parse(code).body)
        except (SyntaxError, ValueError):
            return False


class Transformer:
    """The network of ``source_code.py`` that keeps keys and values, so that each byte is read once."""

    def __init__(self, tensors):
        self._tensors = tensors
        self._layers = [[] for _ in range(1 + max(int(n.split(".")[1]) for n in tensors if n.startswith("blocks.")))]
        self._length = 0

    def read(self, text):
        """Bytes (n, T) that follow those of earlier calls -> logits of the byte behind the last, (n, 256)."""
        length = self._length + text.shape[1]
        x = self._tensors["embedding.embedding_table"][text] + self._tensors["places"][self._length : length]
        for number, kept in enumerate(self._layers):
            block = f"blocks.{number}."
            x = x + self._attention(block + "attention.", self._normalised(block + "norm_1", x), kept)
            inner = np.maximum(self._dense(block + "dense.0", self._normalised(block + "norm_2", x)), 0)
            x = x + self._dense(block + "dense.2", inner)
        self._length = length
        return self._dense("logits", self._normalised("norm", x[:, -1]))

    def _attention(self, name, x, kept):
        n, added, width = x.shape
        mixed = self._dense(name + "inputs", x).reshape(n, added, 3, HEADS, width // HEADS).transpose(2, 0, 3, 1, 4)
        query, key, value = mixed
        if kept:
            key, value = np.concatenate([kept[0], key], axis=2), np.concatenate([kept[1], value], axis=2)
        kept[:] = key, value
        scores = query @ key.swapaxes(2, 3) * (width // HEADS) ** -0.5
        scores += np.triu(np.full((added, key.shape[2]), -1e9, np.float32), key.shape[2] - added + 1)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        return self._dense(name + "outputs", (weights @ value).swapaxes(1, 2).reshape(n, added, width))

    def _dense(self, name, x):
        return x @ self._tensors[name + ".weight"].T + self._tensors[name + ".bias"]

    def _normalised(self, name, x):
        centred = x - x.mean(axis=-1, keepdims=True)
        spread = np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + 1e-7)
        return centred / spread * self._tensors[name + ".gamma"] + self._tensors[name + ".beta"]

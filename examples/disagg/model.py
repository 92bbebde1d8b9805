"""A small transformer in numpy: random weights of a seed, grouped or latent attention over a paged cache.

cache.py has the cache. The keys lie in it unrotated and are rotated as they are read, by the place that the
block table gives them: attention is a sum over tokens, and would not notice exchanged blocks otherwise.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Shape:
    layers: int = 6
    width: int = 128
    heads: int = 8  # of queries
    kv_heads: int = 4
    elements: int = 16  # of a head
    vocabulary: int = 1024
    latent: int = 0  # elements of the latent that MLA caches in place of keys and values

    @property
    def rows(self) -> tuple[int, int, int]:
        """What one layer caches of a token: pairs, heads, elements."""
        return (1, 1, self.latent) if self.latent else (2, self.kv_heads, self.elements)


def normal(x):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def rotated(x, positions):
    """Rotary position encoding of (head, token, element)."""
    half = x.shape[-1] // 2
    angle = positions[:, None] * 100.0 ** (-np.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)], -1)


class Model:
    def __init__(self, shape, seed=7):
        self.shape, s = shape, shape
        self.computed = 0  # tokens, so far
        rng = np.random.default_rng(seed)

        def weights(*sizes):
            return rng.normal(0, sizes[-2] ** -0.5, sizes)

        self.embedding = rng.normal(0, 1, (s.vocabulary, s.width))
        self.queries = 4 * weights(s.layers, s.width, s.heads * s.elements)
        self.rows = weights(s.layers, s.width, np.prod(s.rows))
        # Of MLA: the keys and values of each head of queries, from the latent.
        self.up = weights(s.layers, 2, s.heads, s.latent, s.elements) if s.latent else None
        self.out = 2 * weights(s.layers, s.heads * s.elements, s.width)
        self.unembedding = weights(s.width, s.vocabulary)
        self.mlp = weights(s.layers, s.width, 4 * s.width), weights(s.layers, 4 * s.width, s.width)

    def forward(self, tokens, first, paged, written=lambda layer: None):
        """Computes the tokens at the positions from `first` on, over what the cache has of those before them.
        Returns the likeliest next token. Calls `written` when a layer's rows are in the cache."""
        s, positions = self.shape, np.arange(first, first + len(tokens))
        self.computed += len(tokens)
        x = self.embedding[list(tokens)]
        for layer in range(s.layers):
            h = normal(x)
            paged.write(layer, first, (h @ self.rows[layer]).reshape(-1, *s.rows))
            written(layer)
            q = (h @ self.queries[layer]).reshape(-1, s.heads, s.elements).swapaxes(0, 1)
            q = rotated(q, positions)
            x = x + self.attention(layer, q, positions, paged) @ self.out[layer]
            x = x + np.tanh(normal(x) @ self.mlp[0][layer]) @ self.mlp[1][layer]
        return int(np.argmax(normal(x[-1]) @ self.unembedding))

    def attention(self, layer, q, positions, paged):
        """Each rank's heads attend over the rank's own cache."""
        found, own = [], self.shape.heads // len(paged.ranks)
        for number, rows in enumerate(paged.read(layer, positions[-1] + 1)):
            heads = slice(number * own, (number + 1) * own)
            if self.up is None:
                # Several heads of queries share a head of keys and values.
                k, v = (np.repeat(rows[:, half].swapaxes(0, 1), own // rows.shape[2], 0) for half in (0, 1))
            else:
                k, v = (rows[:, 0, 0] @ self.up[layer, half, heads] for half in (0, 1))
            scores = q[heads] @ rotated(k, np.arange(len(rows))).swapaxes(1, 2) * self.shape.elements**-0.5
            scores[:, np.arange(len(rows)) > positions[:, None]] = -np.inf
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            found.append(scores / scores.sum(-1, keepdims=True) @ v)
        return np.concatenate(found).swapaxes(0, 1).reshape(len(positions), -1)

"""Measures codecs on your own keys, values and queries, with NumPy alone.

python measure.py keys.npy values.npy queries.npy

Keys and values are [kv_heads, tokens, width], keys after the rotary embedding. Queries are those of the newest token,
[query_heads, width].
"""

import sys

import numpy as np
import octaplex


def exact(queries: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Attention without a cache, in float64."""
    group = len(queries) // len(keys)
    keys, values = (rows.astype(np.float64).repeat(group, axis=0) for rows in (keys, values))
    logits = np.einsum("hd,htd->ht", queries, keys) / keys.shape[-1] ** 0.5
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.einsum("ht,htd->hd", weights / weights.sum(axis=1, keepdims=True), values)


def main() -> None:
    keys, values, queries = (np.load(path).astype(np.float32) for path in sys.argv[1:4])
    heads, tokens, width = keys.shape
    expected = exact(queries, keys, values)
    print("bits a value in pages, error of attention's output relative to its norm, codecs of keys / values")
    for bits in (2.5, 3.25, 4.25, 6.5, 8.5):
        cache = octaplex.Cache(1, heads, width, max(tokens, 256), bits=bits, recent_window=0)
        cache.append(0, keys, values)
        output = cache.attend(0, queries)
        error = np.linalg.norm(output - expected) / np.linalg.norm(expected)
        stats = cache.stats()
        paged = 8 * stats.paged_bytes / (stats.paged_tokens * heads * 2 * width)
        print(f"{paged:.2f}  {error:.4f}  {' / '.join(cache.specs[0])}")


if __name__ == "__main__":
    main()

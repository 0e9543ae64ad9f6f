"""Provides a cache and an attention for Hugging Face's transformers: ``OctaplexCache``, and
``attn_implementation="octaplex"``.

>>> from octaplex.transformers import OctaplexCache
>>> model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="octaplex")  # doctest: +SKIP
>>> model.generate(**inputs, cache=OctaplexCache(model.config, bits=4.2))  # doctest: +SKIP

Importing this module registers the attention. It reads the compressed bytes on the model's device: the CPU,
or a GPU of NVIDIA's. Each layer's cache is on the device of its keys.

Before transformers 5.24 the argument ``cache`` is called ``past_key_values``.

It needs transformers 5.17 or newer. There, ``update`` takes a layer's new keys and values, and its result
goes to the attention function."""

from .._octaplex import Error

#: The newest version of transformers that is tested. Others work if they have what this package imports.
KNOWN = "5.24"

try:
    import transformers

    from ._attention import register
    from ._cache import OctaplexCache
    from ._decode_graph import DecodeGraph
    from ._decode_graph import given as given
except ImportError as error:
    if error.name in ("torch", "transformers"):
        raise
    version = getattr(transformers, "__version__", "of unknown version")
    raise Error(
        f"transformers {version} lacks what octaplex needs ({error}); 5.17 to {KNOWN} have it: "
        f"pip install 'transformers=={KNOWN}.*', or a newer octaplex"
    ) from error

__all__ = ["KNOWN", "DecodeGraph", "OctaplexCache"]

register()

"""zerogap: RL post-training of language models in which trainer and inference engine are one policy.

The rooms and who may import whom: ``docs/architecture.md``. Importing this package imports no room.
"""

__version__ = "0.1.0"

"""What the benchmark scripts share: counting FLOPs, measuring the machine's limit, running each side in a process of its own.

Nothing here decides what a benchmark compares; the scripts do. zerogap and the peers (transformers, TRL) are only
imported inside worker processes, so that none of them is in another's memory or timing.
"""

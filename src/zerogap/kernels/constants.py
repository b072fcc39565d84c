"""Extents that every kernel shares; part of the numerics contract, since they fix the order of additions."""

PAGE_SIZE = 16
"""Tokens a KV page: one vector of keys for the score kernel."""

ROW_MULTIPLE = 8
"""GEMM rows are padded to a multiple of this; below it, MKL picks kernels whose bits depend on the row count."""

VOCAB_CHUNK = 4096
"""Columns of the head that are computed at once."""

"""Extents that every kernel shares; part of the numerics contract, since they fix the order of additions."""

PAGE_SIZE = 16
"""Tokens a KV page: one vector of keys for the score kernel."""

ROW_MULTIPLE = 8
"""Where a BLAS multiplies, rows are padded to a multiple of this: otherwise MKL picks kernels whose bits depend on the
row count. With our own GEMMs no bit depends on it."""

FIXED_TILE = 64
"""Rows of every call of a BLAS that does not keep a row's bits over row counts: slower, and exact."""

VOCAB_CHUNK = 4096
"""Columns of the head that are computed at once."""

"""Sizes that all kernels share; part of the numerics contract, since they fix the order of additions."""

PAGE_SIZE = 16
"""Tokens per KV page: one vector of keys for the score kernel."""

ROW_MULTIPLE = 8
"""Row counts of BLAS GEMMs are padded to a multiple of this: otherwise MKL picks kernels whose bits depend on the row
count. Our own GEMMs need no padding."""

FIXED_TILE = 64
"""Rows per call of a BLAS whose bits depend on the row count: slower, but batch-invariant."""

VOCAB_CHUNK = 4096
"""Columns of the language-model head that are computed at once."""

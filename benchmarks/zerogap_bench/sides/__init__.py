"""One module per side of a comparison, each loaded only in the process of that side."""

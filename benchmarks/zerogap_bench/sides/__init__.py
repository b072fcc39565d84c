"""One module a side of a comparison, each loaded only in that side's own process."""

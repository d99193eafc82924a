"""Reference model of the store's semantics and the random sequences that hold the store against it."""

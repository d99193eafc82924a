"""effectstore: a transactional effect store for speculative agents."""

//! effectstore.

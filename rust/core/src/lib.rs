//! effectstore.

pub mod graph;

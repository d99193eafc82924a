//! effectstore: a transactional effect store for speculative agents.
#![deny(missing_docs)]

pub mod decide;
pub mod graph;
pub mod model;
pub mod state;

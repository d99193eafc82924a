//! effectstore: a transactional effect store for speculative agents.
#![deny(missing_docs)]

pub mod codec;
pub mod decide;
pub mod error;
pub mod graph;
pub mod log;
pub mod model;
pub mod state;
pub mod storage;
pub mod store;

pub use error::Error;
pub use store::{EffectStore, Options};

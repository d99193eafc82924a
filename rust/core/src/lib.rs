//! effectstore.

pub mod storage;

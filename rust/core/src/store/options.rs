//! How a store is opened.

use std::sync::Arc;

use crate::model::{Limits, Policy};

/// A clock that a caller gives, in milliseconds since 1970.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Options of [`EffectStore::open`](super::EffectStore::open).
#[derive(Clone)]
#[non_exhaustive]
pub struct Options {
    /// Make the store if it is not there.
    pub create: bool,
    /// Refuse every write.
    pub read_only: bool,
    /// Limits of a new store.
    pub limits: Option<Limits>,
    /// Policy of a new store.
    pub policy: Option<Policy>,
    /// Size of the memory map of a new store, in bytes; 1 TiB by default, and sparse.
    pub map_size: Option<u64>,
    /// How long a write waits for a writer of another process, in milliseconds, before it is
    /// refused with [`StorageError::StoreBusy`](crate::storage::StorageError::StoreBusy).
    pub busy_timeout_ms: u64,
    /// A clock for tests; the system's by default.
    pub clock: Option<Clock>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            create: true,
            read_only: false,
            limits: None,
            policy: None,
            map_size: None,
            busy_timeout_ms: 10_000,
            clock: None,
        }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("create", &self.create)
            .field("read_only", &self.read_only)
            .field("map_size", &self.map_size)
            .field("busy_timeout_ms", &self.busy_timeout_ms)
            .finish_non_exhaustive()
    }
}

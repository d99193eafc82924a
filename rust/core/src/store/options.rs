//! How a store is opened.

use std::sync::Arc;

use crate::model::{AlertInfo, Limits, Policy};

/// A clock that a caller gives, in milliseconds since 1970.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// What a machine says of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineTime {
    /// The wall clock, in milliseconds since 1970. It may step.
    pub wall_ms: u64,
    /// The boot-time clock, in milliseconds since the boot. It never steps.
    pub boot_ms: u64,
    /// What the kernel calls this boot.
    pub boot_id: [u8; 16],
}

/// A machine's clocks, for tests.
pub type MachineClock = Arc<dyn Fn() -> MachineTime + Send + Sync>;

/// Told of each alert that this process has raised, once it is durable; it must not call the store.
pub type OnAlert = Arc<dyn Fn(&AlertInfo) + Send + Sync>;

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
    /// The machine's clocks, of which store time is made where no `clock` is given; for tests of
    /// steps of the wall clock and of boots. The system's by default.
    pub machine: Option<MachineClock>,
    /// Told of each alert that this process has raised, for its own log.
    pub on_alert: Option<OnAlert>,
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
            machine: None,
            on_alert: None,
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

//! Store time: an anchor that the first process of a boot sets, and the boot-time clock since.
//!
//! Steps of the wall clock bend nothing within a boot, and all processes of a boot agree. The anchor
//! lies in a row of the table meta, written in the transaction of the first command of the boot; the
//! leases of an earlier boot end in it, since nobody is left who held them.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use super::options::{Clock, MachineClock, MachineTime};
use crate::storage::machine::{boot_clock_ms, boot_id};
use crate::storage::{ReadView, StorageError, Table, WriteBatch};

/// The row of the anchor.
const BOOT_ROW: &[u8] = b"boot";

/// The time of one open store.
pub(super) struct StoreTime {
    given: Option<Clock>,
    machine: MachineClock,
    /// Store time less the boot-time clock.
    offset_ms: AtomicI64,
}

/// What the anchor's row says.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Anchor {
    boot_id: [u8; 16],
    wall_ms: u64,
    boot_ms: u64,
}

impl Anchor {
    fn parse(row: &[u8]) -> Option<Self> {
        let row: &[u8; 32] = row.try_into().ok()?;
        let number = |at: usize| u64::from_be_bytes(std::array::from_fn(|place| row[at + place]));
        let boot_id = std::array::from_fn(|place| row[place]);
        Some(Anchor { boot_id, wall_ms: number(16), boot_ms: number(24) })
    }

    fn row(&self) -> [u8; 32] {
        let mut row = [0; 32];
        row[..16].copy_from_slice(&self.boot_id);
        row[16..24].copy_from_slice(&self.wall_ms.to_be_bytes());
        row[24..].copy_from_slice(&self.boot_ms.to_be_bytes());
        row
    }
}

fn stored(view: &(impl ReadView + ?Sized)) -> Result<Option<Anchor>, StorageError> {
    // A row that cannot be read is replaced by the next boot's.
    Ok(view.get(Table::Meta, BOOT_ROW)?.and_then(|row| Anchor::parse(&row)))
}

/// What anchoring has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Anchored {
    /// Another process was first.
    Found,
    /// This one was, and no boot before is known.
    First,
    /// This one was, after another boot.
    NewBoot,
}

impl StoreTime {
    /// Time for a store, and whether its anchor is this boot's already.
    pub(super) fn new(
        given: Option<Clock>,
        machine: Option<MachineClock>,
        view: &dyn ReadView,
    ) -> Result<(Self, bool), StorageError> {
        let machine = machine.unwrap_or_else(|| Arc::new(MachineTime::now));
        let now = machine();
        let anchor = stored(view)?.filter(|anchor| anchor.boot_id == now.boot_id);
        let time = StoreTime { given, machine, offset_ms: AtomicI64::new(0) };
        time.adopt(anchor.unwrap_or(Anchor {
            boot_id: now.boot_id,
            wall_ms: now.wall_ms,
            boot_ms: now.boot_ms,
        }));
        Ok((time, anchor.is_some()))
    }

    fn adopt(&self, anchor: Anchor) {
        let offset = anchor.wall_ms.cast_signed().saturating_sub(anchor.boot_ms.cast_signed());
        self.offset_ms.store(offset, Ordering::Relaxed);
    }

    /// Makes sure that the anchor is this boot's.
    pub(super) fn anchor(&self, batch: &mut dyn WriteBatch) -> Result<Anchored, StorageError> {
        let now = (self.machine)();
        let found = stored(batch)?;
        if let Some(anchor) = found.filter(|anchor| anchor.boot_id == now.boot_id) {
            self.adopt(anchor);
            return Ok(Anchored::Found);
        }
        let anchor = Anchor { boot_id: now.boot_id, wall_ms: now.wall_ms, boot_ms: now.boot_ms };
        batch.put(Table::Meta, BOOT_ROW, &anchor.row())?;
        self.adopt(anchor);
        Ok(if found.is_some() { Anchored::NewBoot } else { Anchored::First })
    }

    /// Milliseconds since 1970.
    pub(super) fn now_ms(&self) -> u64 {
        if let Some(clock) = &self.given {
            return super::clock::read(clock);
        }
        let since = (self.machine)().boot_ms.cast_signed();
        let now = since.saturating_add(self.offset_ms.load(Ordering::Relaxed));
        u64::try_from(now).unwrap_or(0)
    }

    /// Whether time comes from a clock that the caller gave, so that sleeping does not move it.
    pub(super) fn is_given(&self) -> bool {
        self.given.is_some()
    }
}

impl MachineTime {
    /// What this machine says now.
    pub fn now() -> Self {
        Self { wall_ms: super::system_now_ms(), boot_ms: boot_clock_ms(), boot_id: boot_id() }
    }
}

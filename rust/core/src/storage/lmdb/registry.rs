//! Which stores this process has open, by the identity of the data file.
//!
//! LMDB must never open one file twice in a process: the second close drops the process's locks,
//! and readers then see garbage without an error. So a second open of the same file, by whatever
//! path, gets the first handle; and a handle that goes is closed before the file is opened again.

use std::collections::BTreeMap;
use std::process;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use super::files::FileId;
use super::{LmdbStorage, State};
use crate::storage::StorageError;

pub(super) struct Entry {
    pub(super) pid: u32,
    pub(super) handle: Weak<LmdbStorage>,
    /// Kept beside the handle, so that a child of `fork` can find what it inherited.
    pub(super) state: Arc<State>,
}

pub(super) type Entries = BTreeMap<FileId, Entry>;

static OPEN: Mutex<Entries> = Mutex::new(BTreeMap::new());

/// How long an open waits for another open or close of this process.
const PATIENCE: Duration = Duration::from_secs(30);

/// The registry, locked. In a child of `fork` the lock may belong to a thread that is not there,
/// so this does not wait for ever.
pub(super) fn lock() -> Result<MutexGuard<'static, Entries>, StorageError> {
    let began = Instant::now();
    loop {
        match OPEN.try_lock() {
            Ok(entries) => return Ok(entries),
            // An entry is added or removed in one step, so the map is whole.
            Err(TryLockError::Poisoned(entries)) => return Ok(entries.into_inner()),
            Err(TryLockError::WouldBlock) if began.elapsed() < PATIENCE => {
                thread::sleep(Duration::from_micros(500));
            }
            Err(TryLockError::WouldBlock) => {
                let held_for_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
                let pid = process::id();
                return Err(StorageError::StoreBusy { pid, held_for_ms, elsewhere: false });
            }
        }
    }
}

/// Closes what a child of `fork` inherited, so that it can open these files itself.
pub(super) fn forget_inherited(entries: &mut Entries) {
    let pid = process::id();
    entries.retain(|_, entry| {
        if entry.pid != pid {
            entry.state.close_inherited();
        }
        entry.pid == pid
    });
}

//! The clock that a caller gives: which one a store has, and that it may not ask the store.

use std::cell::Cell;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::options::Clock;
use crate::error::Error;
use crate::model::Refusal;
use crate::storage::{Storage, StorageError};

thread_local! {
    /// How many clocks are being read on this thread.
    static READING: Cell<u32> = const { Cell::new(0) };
}

/// Open storages of this process, each with the address of the clock that it was opened with.
static OPEN: Mutex<Vec<Opened>> = Mutex::new(Vec::new());

/// A storage, and its clock's address; none where it goes by the machine's.
type Opened = (Weak<dyn Storage>, Option<usize>);

/// Reads a clock. The store may be locked meanwhile.
pub(super) fn read(clock: &Clock) -> u64 {
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            READING.set(READING.get() - 1);
        }
    }
    READING.set(READING.get() + 1);
    let _leave = Leave;
    clock()
}

/// Refuses a call by the code of a clock: the store that asks for the time would wait for itself.
pub(super) fn outside() -> Result<(), Error> {
    if READING.get() == 0 {
        return Ok(());
    }
    let reason = "a clock is read while the store is locked and may not call a store".to_owned();
    Err(Refusal::Options { option: "clock", reason }.into())
}

/// Refuses a second open of a storage under another clock: the two would disagree on what is due.
pub(super) fn same(storage: &Arc<dyn Storage>, clock: Option<&Clock>) -> Result<(), Error> {
    let address = clock.map(|clock| Arc::as_ptr(clock).cast::<()>() as usize);
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    open.retain(|(known, _)| known.strong_count() > 0);
    let known = open.iter().find(|(known, _)| {
        known.upgrade().is_some_and(|known| {
            std::ptr::eq(Arc::as_ptr(&known).cast::<()>(), Arc::as_ptr(storage).cast::<()>())
        })
    });
    match known {
        Some((_, first)) if *first == address => Ok(()),
        Some(_) => {
            let reason = "this process has the store open with another clock; give the same, or \
                          close it first"
                .to_owned();
            Err(Error::Storage(StorageError::Options { option: "clock", reason }))
        }
        None => {
            open.push((Arc::downgrade(storage), address));
            Ok(())
        }
    }
}

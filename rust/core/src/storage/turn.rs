//! One writer at a time among the threads of this process. LMDB's own lock would make a thread
//! that begins a second batch wait for itself for ever; this one refuses it.

use std::process;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Instant;

use super::StorageError;

#[derive(Debug, Default)]
pub(crate) struct Turn {
    holder: Mutex<Option<(ThreadId, Instant)>>,
    freed: Condvar,
}

/// The turn of one thread, given back when dropped.
pub(crate) struct TurnGuard<'t>(&'t Turn);

impl Turn {
    /// Waits for the turn.
    ///
    /// # Errors
    /// [`StorageError::StoreBusy`] if this thread has it already.
    pub(crate) fn take(&self) -> Result<TurnGuard<'_>, StorageError> {
        let mut holder = self.holder();
        loop {
            match *holder {
                None => {
                    *holder = Some((thread::current().id(), Instant::now()));
                    return Ok(TurnGuard(self));
                }
                Some((thread, since)) if thread == thread::current().id() => {
                    return Err(StorageError::StoreBusy {
                        pid: process::id(),
                        held_for_ms: u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX),
                    });
                }
                Some(_) => {
                    holder = self.freed.wait(holder).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    // No code that can panic runs while the lock is held, so a poisoned one is still sound.
    fn holder(&self) -> MutexGuard<'_, Option<(ThreadId, Instant)>> {
        self.holder.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for TurnGuard<'_> {
    fn drop(&mut self) {
        *self.0.holder() = None;
        self.0.freed.notify_one();
    }
}

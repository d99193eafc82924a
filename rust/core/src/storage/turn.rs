//! One writer at a time: among the threads of this process here, among processes by the gate of the
//! files. LMDB's own lock would make a thread that begins a second batch wait for itself for ever;
//! this one refuses it.

use std::process;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use super::StorageError;
use super::lmdb::Pass;

#[derive(Debug, Default)]
pub(crate) struct Turn {
    holder: Mutex<Option<(ThreadId, Instant)>>,
    freed: Condvar,
}

/// The turn to write, of one thread of one process; given back when dropped. See
/// [`super::Storage::take_turn`].
pub struct WriteTurn<'t> {
    turn: &'t Turn,
    pub(crate) pass: Option<Pass>,
}

impl std::fmt::Debug for WriteTurn<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WriteTurn").finish_non_exhaustive()
    }
}

impl Turn {
    /// Waits for the turn among the threads of this process.
    ///
    /// # Errors
    /// [`StorageError::StoreBusy`] if this thread has it already, or another one for too long.
    pub(crate) fn take(&self, patience: Duration) -> Result<WriteTurn<'_>, StorageError> {
        let deadline = Instant::now().checked_add(patience);
        let mut holder = self.holder();
        loop {
            let left = deadline
                .map_or(patience, |deadline| deadline.saturating_duration_since(Instant::now()));
            match *holder {
                None => {
                    *holder = Some((thread::current().id(), Instant::now()));
                    return Ok(WriteTurn { turn: self, pass: None });
                }
                Some((thread, since)) if thread == thread::current().id() || left.is_zero() => {
                    return Err(StorageError::StoreBusy {
                        pid: process::id(),
                        held_for_ms: u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX),
                        elsewhere: false,
                    });
                }
                Some(_) => {
                    let woken = self.freed.wait_timeout(holder, left);
                    holder = woken.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }

    // No code that can panic runs while the lock is held, so a poisoned one is still sound.
    fn holder(&self) -> MutexGuard<'_, Option<(ThreadId, Instant)>> {
        self.holder.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for WriteTurn<'_> {
    fn drop(&mut self) {
        // Other processes first: the next thread of this one asks at the gate like anybody.
        drop(self.pass.take());
        *self.turn.holder() = None;
        self.turn.freed.notify_one();
    }
}

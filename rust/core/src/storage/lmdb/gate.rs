//! The gate in front of LMDB's writer lock, which has no timeout and no order.
//!
//! Two locks of the kernel on bytes of the owner file keep processes apart: one for whoever is in
//! the gate, one for the first of those who wait. The kernel gives both back when their process
//! ends, however that comes about. Whoever leaves and wants in again must first become the first
//! of the queue, so it yields to who waits already. The shared page only says whom to wake, and
//! who is in.
//!
//! The locks belong to the process, so one thread of it asks at a time: see `Turn`.

use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::opened::Opened;
use super::page::{Page, sleep_on, wake};
use crate::storage::StorageError;
use crate::storage::machine::boot_clock_ms;

/// Longest sleep at the gate: nobody wakes those who wait for a process that was killed in it.
const KILLED_SLICE: Duration = Duration::from_millis(10);

/// How long the first of the queue, found stopped, is given a short time only to come first.
const DISTRUST_MS: u64 = 1_000;

/// That short time. Whoever runs comes sooner.
const STOPPED_SLICE: Duration = Duration::from_millis(1);

/// What this process knows of the gate beyond locks and page.
#[derive(Default)]
pub(super) struct Gate {
    /// Until when the first of the queue counts as stopped, by the boot-time clock.
    distrust_until_ms: AtomicU64,
}

/// The right to write, among processes; given back when dropped.
pub(crate) struct Pass {
    opened: Arc<Opened>,
    page: Arc<Page>,
}

/// Waits until no other process writes.
///
/// # Errors
/// [`StorageError::StoreBusy`] names who is in the gate, when `patience` is over.
pub(super) fn enter(opened: &Arc<Opened>, patience: Duration) -> Result<Pass, StorageError> {
    let page = opened.shared.page()?;
    if page.waiters().load(Ordering::SeqCst) == 0 && opened.owner.try_gate()? {
        return Ok(Pass::new(opened, page));
    }
    let mut waiting = Waiting { opened, page, first: false };
    waiting.page.waiters().fetch_add(1, Ordering::SeqCst);
    waiting.wait(patience)?;
    let page = Arc::clone(&waiting.page);
    Ok(Pass::new(opened, page))
}

/// A place in the queue, given up when dropped.
struct Waiting<'o> {
    opened: &'o Arc<Opened>,
    page: Arc<Page>,
    /// Whether this process is the first of the queue.
    first: bool,
}

impl Waiting<'_> {
    fn wait(&mut self, patience: Duration) -> Result<(), StorageError> {
        let deadline = Instant::now().checked_add(patience);
        let (mut slept, mut ever_slept) = (true, false);
        loop {
            // The count may have been lost; who leaves looks at it after unlocking.
            self.page.waiters().fetch_max(1, Ordering::SeqCst);
            // Both are read before the locks are tried: who leaves counts them up afterwards.
            let gate_seen = self.page.gate_word().load(Ordering::SeqCst);
            let queue_seen = self.page.queue_word().load(Ordering::SeqCst);
            if !self.first {
                self.first = self.opened.owner.try_first()?;
            }
            // After a sleep that nobody ended the first may be stopped, and must not stop all.
            if (self.first || !slept) && self.opened.owner.try_gate()? {
                if !ever_slept {
                    // The count may have been left by processes that were killed. Whoever does
                    // wait counts itself again.
                    self.page.waiters().store(1, Ordering::SeqCst);
                    wake(self.page.queue_word(), i32::MAX);
                }
                if !self.first {
                    let until = boot_clock_ms() + DISTRUST_MS;
                    self.opened.gate.distrust_until_ms.store(until, Ordering::Relaxed);
                }
                return Ok(());
            }
            let left = deadline.map_or(KILLED_SLICE, |deadline| {
                deadline.saturating_duration_since(Instant::now())
            });
            if left.is_zero() {
                return Err(busy(self.opened, &self.page));
            }
            ever_slept = true;
            slept = if self.first {
                sleep_on(self.page.gate_word(), gate_seen, left.min(KILLED_SLICE))
            } else {
                let until = self.opened.gate.distrust_until_ms.load(Ordering::Relaxed);
                let slice = if boot_clock_ms() < until { STOPPED_SLICE } else { KILLED_SLICE };
                sleep_on(self.page.queue_word(), queue_seen, left.min(slice))
            };
            if !slept {
                // The page may have been replaced.
                self.page = self.opened.shared.page()?;
            }
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let waiters = self.page.waiters();
        // It may have been set anew meanwhile; it is never counted below nobody.
        let less = |count: u32| Some(count.saturating_sub(1));
        let _ = waiters.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        if self.first {
            self.opened.owner.leave_first();
            wake(self.page.queue_word(), 1);
        }
    }
}

impl Pass {
    fn new(opened: &Arc<Opened>, page: Arc<Page>) -> Self {
        page.since_ms().store(boot_clock_ms(), Ordering::Relaxed);
        page.namespace().store(opened.namespace, Ordering::Relaxed);
        page.holder().store(opened.pid, Ordering::SeqCst);
        Self { opened: Arc::clone(opened), page }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        // In a child of `fork` the gate is the parent's.
        if process::id() != self.opened.pid {
            return;
        }
        self.page.holder().store(0, Ordering::SeqCst);
        self.opened.owner.leave_gate();
        if self.page.waiters().load(Ordering::SeqCst) > 0 {
            wake(self.page.gate_word(), i32::MAX);
        }
    }
}

/// Who is in the gate, as far as the page can be believed.
fn busy(opened: &Opened, page: &Page) -> StorageError {
    let pid = page.holder().load(Ordering::SeqCst);
    let elsewhere = page.namespace().load(Ordering::Relaxed) != opened.namespace;
    let known = pid != 0 && opened.owner.has_open(pid).unwrap_or(false);
    if !known {
        return StorageError::StoreBusy { pid: 0, held_for_ms: 0, elsewhere: false };
    }
    let held_for_ms = boot_clock_ms().saturating_sub(page.since_ms().load(Ordering::Relaxed));
    StorageError::StoreBusy { pid, held_for_ms, elsewhere }
}

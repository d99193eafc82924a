//! Calls into the core: detached from the interpreter, with waits cut into slices.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use effectstore::Error;
use effectstore::storage::StorageError;
use pyo3::prelude::*;

use crate::errors::raise;

/// Longest wait between two looks at the signals, in milliseconds.
pub(crate) const SLICE_MS: u64 = 50;

/// Calls the core without the interpreter.
pub(crate) fn call<T: Send>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, Error> + Send,
) -> PyResult<T> {
    py.detach(|| guarded(work)).map_err(|error| raise(py, &error))
}

/// Calls the core so that a panic of it becomes an error and never reaches the interpreter.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    // The core poisons its own store when it panics, so nothing half-changed is seen afterwards.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let cause = panic
            .downcast_ref::<&str>()
            .map(ToString::to_string)
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "a panic without words".to_owned());
        Err(Error::Storage(StorageError::Poisoned { cause }))
    })
}

/// The time that a caller is ready to wait.
pub(crate) struct Patience {
    start: Instant,
    wait_ms: u64,
}

impl Patience {
    /// Starts to count.
    pub(crate) fn of(wait_ms: u64) -> Self {
        Patience { start: Instant::now(), wait_ms }
    }

    /// What is left, in milliseconds.
    pub(crate) fn left_ms(&self) -> u64 {
        if self.wait_ms == 0 {
            return 0;
        }
        let spent = self.start.elapsed();
        let wait = Duration::from_millis(self.wait_ms);
        let left = wait.saturating_sub(spent);
        // Rounded up, so that the last slice is not spent in turns of nothing.
        u64::try_from(left.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)
    }
}

/// Asks the core in slices until the answer is settled, a refusal will not pass, or the time is up.
pub(crate) fn ask<T: Send>(
    py: Python<'_>,
    patience: &Patience,
    ask_once: impl Fn(u64) -> Result<T, Error> + Send + Sync,
    settled: impl Fn(&T) -> bool,
) -> PyResult<T> {
    loop {
        let slice_ms = patience.left_ms().min(SLICE_MS);
        let answer = py.detach(|| guarded(|| ask_once(slice_ms)));
        let over = match &answer {
            Ok(answer) => settled(answer),
            Err(error) => !passes(error),
        };
        if over || patience.left_ms() == 0 {
            return answer.map_err(|error| raise(py, &error));
        }
        py.check_signals()?;
    }
}

/// Whether time may cure a refusal: somebody holds a key, a place or the writer's lock.
fn passes(error: &Error) -> bool {
    matches!(
        error.code(),
        "key_busy" | "dirty_key" | "uncommitted_key" | "limit_exceeded" | "store_busy"
    )
}

//! Waiting: verbs that are refused for now try again when something changes, until a deadline.
//!
//! Every durable batch of any process wakes those who wait. What falls due with time does not, so
//! they sleep no longer than to the next moment at which something does, and make it happen.

use std::time::{Duration, Instant};

use super::EffectStore;
use crate::error::Error;
use crate::model::{ClaimSpec, Command, Refusal};

/// Longest sleep between two looks, lest a wake-up that was lost with the shared page is missed.
const SLICE: Duration = Duration::from_secs(1);

/// Longest sleep where nobody wakes: for the end of another process that holds a step, and for a
/// clock that tests move.
const SHORT_SLICE: Duration = Duration::from_millis(50);

impl EffectStore {
    /// Tries until `attempt` answers with something, or the time is over; the last answer counts.
    pub(super) fn wait_until<T>(
        &self,
        wait_ms: u64,
        attempt: impl FnMut() -> Result<T, Error>,
        enough: impl Fn(&Result<T, Error>) -> bool,
    ) -> Result<T, Error> {
        self.wait_for(wait_ms, None, attempt, enough)
    }

    /// The same, for steps that `spec` would take: their backoffs count as well.
    pub(super) fn wait_for<T>(
        &self,
        wait_ms: u64,
        spec: Option<&ClaimSpec>,
        mut attempt: impl FnMut() -> Result<T, Error>,
        enough: impl Fn(&Result<T, Error>) -> bool,
    ) -> Result<T, Error> {
        let deadline = Instant::now().checked_add(Duration::from_millis(wait_ms));
        let storage = &self.engine().storage;
        loop {
            // Counted before the look: what changes afterwards wakes at once.
            let seen = storage.changes();
            let answer = attempt();
            let left = deadline
                .map_or(SLICE, |deadline| deadline.saturating_duration_since(Instant::now()));
            if enough(&answer) || left.is_zero() {
                return answer;
            }
            storage.wait_for_change(seen, left.min(self.longest_sleep(spec)?));
            self.tick_if_due()?;
        }
    }

    /// How long may pass until something falls due that no batch announces.
    pub(super) fn longest_sleep(&self, spec: Option<&ClaimSpec>) -> Result<Duration, Error> {
        let now_ms = self.now_ms();
        let mut core = self.engine().lock()?;
        let state = &mut core.state;
        let backoff = spec.and_then(|spec| state.next_backoff_ms(spec, now_ms));
        let due = state.next_timer_ms().into_iter().chain(backoff).min();
        let watched = !state.at_work.is_empty() || self.engine().has_own_clock();
        let slice = if watched { SHORT_SLICE } else { SLICE };
        let until_due = due.map_or(slice, |due| {
            // One more, since a moment is over only after it.
            Duration::from_millis(due.saturating_sub(now_ms).saturating_add(1))
        });
        Ok(until_due.min(slice))
    }

    /// Lets what fell due happen, if anything did.
    pub(super) fn tick_if_due(&self) -> Result<(), Error> {
        let due = self.engine().lock()?.state.next_timer_ms();
        if due.is_some_and(|due| due <= self.now_ms()) && !self.inner.read_only {
            self.submit(Command::Tick)?;
        }
        Ok(())
    }
}

/// Refusals that time can lift.
pub(super) fn passing<T>(answer: &Result<T, Error>) -> bool {
    matches!(
        answer,
        Err(Error::Refused {
            refusal: Refusal::UncommittedKey { .. }
                | Refusal::DirtyKey { .. }
                | Refusal::KeyBusy { .. }
                | Refusal::LimitExceeded { .. },
            ..
        })
    )
}

//! Waiting: verbs that are refused for now try again when something changes, until a deadline.

use std::time::{Duration, Instant};

use super::EffectStore;
use crate::error::Error;
use crate::model::{Command, Refusal};

/// Longest sleep between two looks: other processes may have written.
const SLICE: Duration = Duration::from_millis(50);

impl EffectStore {
    /// Tries until `attempt` answers with something, or the time is over; the last answer counts.
    pub(super) fn wait_until<T>(
        &self,
        wait_ms: u64,
        mut attempt: impl FnMut() -> Result<T, Error>,
        enough: impl Fn(&Result<T, Error>) -> bool,
    ) -> Result<T, Error> {
        let deadline = Instant::now().checked_add(Duration::from_millis(wait_ms));
        loop {
            let seen = self.engine().changes();
            let answer = attempt();
            let left = deadline
                .map_or(SLICE, |deadline| deadline.saturating_duration_since(Instant::now()));
            if enough(&answer) || left.is_zero() {
                return answer;
            }
            self.engine().wait_for_change(seen, left.min(SLICE));
            self.tick_if_due()?;
        }
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

//! Who is at work: the lease of a claimed step or of a delivery ends with the process that took it.
//!
//! A process marks the records that made it a holder, in a place that forgets its marks when it ends.
//! Nothing of this is in the log but what follows from it: a command that says which holds are over,
//! so that deciding it again needs no process.

use std::collections::BTreeSet;
use std::process;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::engine::unpoisoned;
use crate::model::{Event, StepHold};
use crate::state::State;
use crate::storage::{Storage, StorageError};

/// Looking for ended holders asks the system once for each hold, so it is not done all the time.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Records by which this process is a holder, by store. They outlive a close: the worker does, too.
static OWN: Mutex<Own> = Mutex::new(Own { pid: 0, records: BTreeSet::new() });

struct Own {
    /// A child of `fork` holds nothing of its parent.
    pid: u32,
    records: BTreeSet<([u8; 16], u64)>,
}

fn with_own<T>(act: impl FnOnce(&mut BTreeSet<([u8; 16], u64)>) -> T) -> T {
    let mut own = unpoisoned(&OWN);
    if own.pid != process::id() {
        own.pid = process::id();
        own.records.clear();
    }
    act(&mut own.records)
}

/// What an open store knows of holders.
#[derive(Default)]
pub(super) struct Holds {
    looked: Option<Instant>,
}

impl Holds {
    /// Marks what an event makes this process a holder of; before the event is visible to others.
    pub(super) fn take(
        storage: &dyn Storage,
        store: [u8; 16],
        seq: u64,
        event: &Event,
    ) -> Result<(), StorageError> {
        if matches!(event, Event::StepClaimed { .. } | Event::Delivered { .. }) {
            storage.hold(seq)?;
            with_own(|own| own.insert((store, seq)));
        }
        Ok(())
    }

    /// Marks again what this process holds, on files that were opened anew.
    pub(super) fn mark_again(storage: &dyn Storage, state: &State) -> Result<(), StorageError> {
        for hold in state.holds() {
            let seq = hold.token.number;
            if with_own(|own| own.contains(&(state.store_id, seq))) {
                storage.hold(seq)?;
            }
        }
        Ok(())
    }

    /// Takes away the marks of what this process holds no more.
    pub(super) fn let_go(storage: &dyn Storage, state: &State) {
        let store = state.store_id;
        let range = (store, 0)..=(store, u64::MAX);
        if with_own(|own| own.range(range.clone()).next().is_none()) {
            return;
        }
        let held: BTreeSet<u64> = state.holds().iter().map(|hold| hold.token.number).collect();
        let over: Vec<u64> = with_own(|own| {
            let over: Vec<u64> =
                own.range(range).map(|(_, seq)| *seq).filter(|seq| !held.contains(seq)).collect();
            for seq in &over {
                own.remove(&(store, *seq));
            }
            over
        });
        for seq in over {
            // A mark that stays harms nobody: its record says no more that anybody is at work.
            let _ = storage.let_go(seq);
        }
    }

    /// Holds whose process is gone, if it is time to look.
    pub(super) fn lost(
        &mut self,
        storage: &dyn Storage,
        state: &State,
    ) -> Result<Vec<StepHold>, StorageError> {
        if state.at_work.is_empty() || self.looked.is_some_and(|at| at.elapsed() < LOOK_EVERY) {
            return Ok(Vec::new());
        }
        self.looked = Some(Instant::now());
        let mut lost = Vec::new();
        for hold in state.holds() {
            let seq = hold.token.number;
            let own = with_own(|own| own.contains(&(state.store_id, seq)));
            if !own && !storage.is_held_elsewhere(seq)? {
                lost.push(hold);
            }
        }
        Ok(lost)
    }
}

//! The side tables, each rebuilt by a replay of the log: branch names, idempotency keys, liveness.

use std::collections::BTreeSet;

use super::corrupted;
use super::liveness::{self, ROW_RECORDS};
use crate::codec::Record;
use crate::decide::Fate;
use crate::model::{EffectId, Event};
use crate::state::State;
use crate::storage::{ReadView, StorageError, Table, WriteBatch};

/// Settles after which the liveness table is folded.
pub const FOLD_SETTLES: u64 = 4_096;

/// The meta row that says how far the liveness table reaches.
pub(super) const LIVENESS_ROW: &[u8] = b"liveness";

/// The row of a branch's name. Names are no keys, since keys are short: the hash is.
pub(super) fn name_row(name: &str) -> [u8; 33] {
    let mut row = [0; 33];
    row[1..].copy_from_slice(blake3::hash(name.as_bytes()).as_bytes());
    row
}

/// What the row of a branch's id holds once it was merged.
pub(super) const MERGED: &[u8] = b"merged";

/// The row that lists a branch by its id.
pub(super) fn branch_row(id: u64) -> [u8; 9] {
    let mut row = [1; 9];
    row[1..].copy_from_slice(&id.to_be_bytes());
    row
}

/// The row of an idempotency key.
pub(super) fn key_row(key: &[u8]) -> [u8; 32] {
    *blake3::hash(key).as_bytes()
}

/// What the tables do not say yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Index {
    /// Effects doomed since the liveness table was folded.
    dooms: BTreeSet<EffectId>,
    /// Effects settled since the store was made.
    pub(super) settles: u64,
    /// The head at the last fold of the liveness table.
    pub(super) folded_at: u64,
    /// Rows of the liveness table that mark a record as needed.
    pub(super) needed_rows: BTreeSet<u64>,
}

impl Index {
    /// Brings the tables up to date with an event that the state has folded.
    pub(super) fn note(
        &mut self,
        batch: &mut dyn WriteBatch,
        seq: u64,
        event: &Event,
        state: &State,
    ) -> Result<(), StorageError> {
        let id = seq.to_be_bytes();
        match event {
            Event::BranchCreated { name, .. } => {
                batch.put(Table::Branches, &name_row(name), &id)?;
                batch.put(Table::Branches, &branch_row(seq), &[])?;
            }
            Event::BranchMerged { branch } => {
                batch.put(Table::Branches, &branch_row(branch.0), MERGED)?;
            }
            Event::Registered(registered) => {
                if let Some(key) = &registered.call.idempotency_key {
                    batch.put(Table::IdempotencyKeys, &key_row(key), &id)?;
                }
            }
            Event::NotRun { effect, .. } if self.became_void(*effect, state) => {
                batch.put(Table::Liveness, &liveness::void_row(*effect), &[])?;
                self.settles += 1;
                free_key(batch, *effect)?;
            }
            Event::Doomed(doom) => {
                self.settles += doom.members.len() as u64;
                for member in doom.members.iter() {
                    self.dooms.insert(member);
                }
            }
            Event::EffectsRecalled { effects, .. } => {
                for recalled in effects.iter().filter(|recalled| recalled.rollback.is_none()) {
                    batch.delete(Table::Liveness, &liveness::void_row(recalled.effect))?;
                }
            }
            Event::Fenced { members, .. } => self.settles += members.len() as u64,
            _ => {}
        }
        Ok(())
    }

    /// Learns from an event whose rows are written already, when a store is opened.
    pub(super) fn recall(
        &mut self,
        view: &dyn ReadView,
        _seq: u64,
        event: &Event,
        _state: &State,
    ) -> Result<(), StorageError> {
        match event {
            Event::NotRun { effect, .. }
                if view.get(Table::Liveness, &liveness::void_row(*effect))?.is_some() =>
            {
                self.settles += 1;
            }
            Event::Doomed(doom) => {
                self.settles += doom.members.len() as u64;
                for member in doom.members.iter() {
                    self.dooms.insert(member);
                }
            }
            Event::Fenced { members, .. } => self.settles += members.len() as u64,
            _ => {}
        }
        Ok(())
    }

    /// Whether a call that did not run was live: a doomed or committed one keeps its state.
    fn became_void(&self, effect: EffectId, state: &State) -> bool {
        !state.effects.contains(effect) && !self.dooms.contains(&effect)
    }

    /// Folds the liveness table after every so many settles, at a place fixed by the log: the end
    /// of a command.
    pub(super) fn fold_when_due(
        &mut self,
        batch: &mut dyn WriteBatch,
        state: &mut State,
        head: u64,
    ) -> Result<(), StorageError> {
        let last = batch
            .get(Table::Meta, LIVENESS_ROW)?
            .map_or(Ok(0), |row| liveness::parse_mark(&row).map(|mark| mark.settles))?;
        if self.settles / FOLD_SETTLES == last / FOLD_SETTLES {
            return Ok(());
        }
        state.tidy();
        let needed = state.needed();
        self.needed_rows = liveness::fold(batch, &needed, &self.dooms, &self.needed_rows)?;
        self.dooms.clear();
        self.folded_at = head;
        batch.put(Table::Meta, LIVENESS_ROW, &liveness::mark(head, self.settles))
    }

    /// What became of a registered effect that memory does not hold.
    pub(super) fn fate(&self, view: &dyn ReadView, effect: EffectId) -> Result<Fate, StorageError> {
        if view.get(Table::Liveness, &liveness::void_row(effect))?.is_some() {
            return Ok(Fate::Void);
        }
        if self.dooms.contains(&effect) {
            return Ok(Fate::Doomed);
        }
        let row = view.get(Table::Liveness, &(effect.0 / ROW_RECORDS).to_be_bytes())?;
        let doomed = row.is_some_and(|row| liveness::doomed_in(&row, effect));
        Ok(if doomed { Fate::Doomed } else { Fate::Committed })
    }
}

/// A void effect frees its idempotency key for a new attempt.
fn free_key(batch: &mut dyn WriteBatch, effect: EffectId) -> Result<(), StorageError> {
    let key = {
        let Some(record) = batch.record(effect.0)? else {
            return Err(corrupted(format!("record {effect}")));
        };
        let header = Record::decode_header(&record)
            .map_err(|error| corrupted(format!("record {effect}: {error}")))?;
        match header.event {
            Event::Registered(registered) => registered.call.idempotency_key,
            _ => None,
        }
    };
    if let Some(key) = key {
        let row = key_row(&key);
        if batch.get(Table::IdempotencyKeys, &row)?.as_deref() == Some(&effect.0.to_be_bytes()[..])
        {
            batch.delete(Table::IdempotencyKeys, &row)?;
        }
    }
    Ok(())
}

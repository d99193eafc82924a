//! The side tables, each rebuilt by a replay of the log: branch names, idempotency keys, liveness.

use std::collections::BTreeSet;

use super::corrupted;
use super::liveness::{self, ROW_RECORDS};
use crate::codec::Record;
use crate::decide::{Ended, Fate};
use crate::model::{BranchId, EffectId, Event, Token};
use crate::state::{State, pair_named};
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
    /// Effects settled by then.
    pub(super) folded_settles: u64,
    /// The records that memory needed at a head, found before a command that may write them down.
    needed: Option<(u64, BTreeSet<u64>)>,
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
                put_ended(batch, BranchId(seq), |ended| {
                    ended.token = Token { incarnation: state.incarnation, number: seq };
                })?;
            }
            Event::BranchTaken { branch, .. } | Event::BranchResumed { branch } => {
                put_ended(batch, *branch, |ended| {
                    ended.token = Token { incarnation: state.incarnation, number: seq };
                })?;
            }
            Event::BranchMerged { branch } => {
                put_ended(batch, *branch, |ended| ended.merged = true)?;
            }
            Event::BranchStopped { branch, closed: true, cause, .. } => {
                put_ended(batch, *branch, |ended| ended.cause = *cause)?;
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
                for stopped in doom.stopped.iter().filter(|stopped| stopped.closed) {
                    let branch = state.branches.get(&stopped.branch);
                    let cause = branch.and_then(|branch| branch.cause);
                    put_ended(batch, stopped.branch, |ended| ended.cause = cause)?;
                }
            }
            Event::EffectsRecalled { effects, .. } => {
                for recalled in effects.iter().filter(|recalled| recalled.rollback.is_none()) {
                    batch.delete(Table::Liveness, &liveness::void_row(recalled.effect))?;
                }
            }
            Event::RollbackStarted(started) => {
                let recalled = started.effects.iter().map(|recalled| recalled.effect);
                for effect in recalled.chain(started.held.iter()) {
                    batch.put(Table::Liveness, &liveness::compensated_row(effect), &[])?;
                }
            }
            Event::Fenced { members, .. } => self.settles += members.len() as u64,
            Event::ArtifactCreated { .. }
            | Event::ArtifactMoved { .. }
            | Event::ArtifactFailed { .. }
            | Event::ArtifactRan { .. } => put_artifact(batch, seq, event)?,
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

    /// Learns from an event that another process has written, rows and all, and the state has folded.
    pub(super) fn learn(&mut self, event: &Event, state: &State) {
        match event {
            Event::NotRun { effect, .. } if self.became_void(*effect, state) => self.settles += 1,
            Event::Doomed(doom) => {
                self.settles += doom.members.len() as u64;
                self.dooms.extend(doom.members.iter());
            }
            Event::Fenced { members, .. } => self.settles += members.len() as u64,
            _ => {}
        }
    }

    /// The liveness table says by now what was doomed so far.
    pub(super) fn forget_dooms(&mut self) {
        self.dooms.clear();
    }

    /// Whether a call that did not run was live: a doomed or committed one keeps its state.
    fn became_void(&self, effect: EffectId, state: &State) -> bool {
        !state.effects.contains(effect) && !self.dooms.contains(&effect)
    }

    /// Whether so much was settled that the next command folds the liveness table.
    fn fold_is_due(&self) -> bool {
        self.settles / FOLD_SETTLES != self.folded_settles / FOLD_SETTLES
    }

    /// Before a command is decided: finds what memory needs, if a fold is due. The fold is written
    /// with the command's first record, so its place is fixed by the log, and it comes after the
    /// answer to the command that made it due.
    pub fn prepare_fold(&mut self, state: &mut State, head: u64) {
        if self.fold_is_due() && self.needed.as_ref().is_none_or(|(at, _)| *at != head) {
            state.tidy();
            self.needed = Some((head, state.needed()));
        }
    }

    /// Before the first record of a command: writes the fold that was prepared.
    pub(super) fn write_fold(
        &mut self,
        batch: &mut dyn WriteBatch,
        head: u64,
    ) -> Result<(), StorageError> {
        let Some((_, needed)) = self.needed.take().filter(|(at, _)| *at == head) else {
            return Ok(());
        };
        self.needed_rows = liveness::fold(batch, &needed, &self.dooms, &self.needed_rows)?;
        self.dooms.clear();
        self.folded_at = head;
        self.folded_settles = self.settles;
        batch.put(Table::Meta, LIVENESS_ROW, &liveness::mark(head, self.settles))
    }

    /// What became of a registered effect that memory does not hold.
    pub(super) fn fate(&self, view: &dyn ReadView, effect: EffectId) -> Result<Fate, StorageError> {
        if is_void(view, effect)? {
            return Ok(Fate::Void);
        }
        if self.dooms.contains(&effect) {
            return Ok(Fate::Doomed);
        }
        let row = view.get(Table::Liveness, &(effect.0 / ROW_RECORDS).to_be_bytes())?;
        let doomed = row.is_some_and(|row| liveness::doomed_in(&row, effect));
        if doomed {
            return Ok(Fate::Doomed);
        }
        let undone = view.get(Table::Liveness, &liveness::compensated_row(effect))?;
        Ok(if undone.is_some() { Fate::Compensated } else { Fate::Committed })
    }
}

/// Adds a record to the row of its pair of artifacts, and the pair to the row of its key.
fn put_artifact(batch: &mut dyn WriteBatch, seq: u64, event: &Event) -> Result<(), StorageError> {
    let Some(pair) = pair_named(seq, event) else { return Ok(()) };
    if let Event::ArtifactCreated { idempotency_key: Some(key), .. } = event {
        batch.put(Table::IdempotencyKeys, &key_row(key), &seq.to_be_bytes())?;
    }
    let key = pair.0.to_be_bytes();
    let mut row = batch.get(Table::Artifacts, &key)?.unwrap_or_default();
    row.extend_from_slice(&seq.to_be_bytes());
    batch.put(Table::Artifacts, &key, &row)
}

/// The records that a row of a pair of artifacts names.
pub(crate) fn parse_artifact(row: &[u8]) -> Result<Vec<u64>, StorageError> {
    let (numbers, rest) = row.as_chunks::<8>();
    if !rest.is_empty() {
        return Err(corrupted("table artifacts, a row of a wrong length"));
    }
    Ok(numbers.iter().map(|number| u64::from_be_bytes(*number)).collect())
}

const ENDED_BYTES: usize = 25;

/// What a branch's row says: token (incarnation, number), whether it was merged, cause or 0.
pub(super) fn parse_ended(row: &[u8]) -> Result<Ended, StorageError> {
    if row.len() != ENDED_BYTES {
        return Err(corrupted("table branches, a row of a wrong length"));
    }
    let number = |from: usize| row[from..from + 8].iter().fold(0, |n, b| n << 8 | u64::from(*b));
    let cause = number(17);
    Ok(Ended {
        token: Token { incarnation: number(0), number: number(8) },
        merged: row[16] != 0,
        cause: (cause != 0).then_some(EffectId(cause)),
    })
}

/// Changes what a branch's row says, so that it can answer for the branch once memory has let it go.
fn put_ended(
    batch: &mut dyn WriteBatch,
    branch: BranchId,
    change: impl FnOnce(&mut Ended),
) -> Result<(), StorageError> {
    let row = batch.get(Table::Branches, &branch_row(branch.0))?;
    let blank = Ended { token: Token::default(), merged: false, cause: None };
    let mut ended = row.map_or(Ok(blank), |row| parse_ended(&row))?;
    change(&mut ended);
    let mut row = [0; ENDED_BYTES];
    row[..8].copy_from_slice(&ended.token.incarnation.to_be_bytes());
    row[8..16].copy_from_slice(&ended.token.number.to_be_bytes());
    row[16] = u8::from(ended.merged);
    row[17..].copy_from_slice(&ended.cause.map_or(0, |cause| cause.0).to_be_bytes());
    batch.put(Table::Branches, &branch_row(branch.0), &row)
}

/// Whether the table says of an effect that it never happened.
///
/// # Errors
/// Where the table cannot be read.
pub fn is_void(view: &dyn ReadView, effect: EffectId) -> Result<bool, StorageError> {
    Ok(view.get(Table::Liveness, &liveness::void_row(effect))?.is_some())
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

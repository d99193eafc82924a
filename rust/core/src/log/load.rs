//! Opening: the state from the records that memory needs, and from a replay of all.

use std::ops::ControlFlow;

use super::index::LIVENESS_ROW;
use super::{Index, Tail, corrupted, liveness};
use crate::codec::{Frame, Newer, Record, chain};
use crate::state::State;
use crate::storage::{ReadView, StorageError, Table, WriteBatch};

/// What a store holds in memory once it is open.
#[derive(Default)]
pub struct Loaded {
    /// The live state.
    pub state: State,
    /// The end of the log.
    pub tail: Tail,
    /// What the tables do not say yet.
    pub index: Index,
}

/// Folds the records that the liveness table names and all that are newer than it: the cost is what
/// is live, however long the history is (I19).
///
/// # Errors
/// [`StorageError::Corrupted`] names the first place that does not fit.
pub fn load(view: &dyn ReadView) -> Result<Loaded, StorageError> {
    let mut state = State::default();
    let mut index = Index::default();
    let mark = view.get(Table::Meta, LIVENESS_ROW)?;
    if let Some(row) = mark {
        let mark = liveness::parse_mark(&row)?;
        let (needed, rows) = liveness::needed(view)?;
        index.settles = mark.settles;
        index.folded_settles = mark.settles;
        index.folded_at = mark.head;
        index.needed_rows = rows;
        for seq in needed {
            let Some(bytes) = view.record(seq)? else {
                return Err(corrupted(format!("record {seq}")));
            };
            fold(view, &mut state, seq, &bytes)?;
        }
        state.tidy();
        state.forget_absent();
    }
    let mut failed = None;
    let from = index.folded_at + 1;
    view.scan(from, &mut |seq, bytes| {
        let folded = fold(view, &mut state, seq, bytes)
            .and_then(|header| index.recall(view, seq, &header.event, &state));
        match folded {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        }
    })?;
    if let Some(error) = failed {
        return Err(error);
    }
    let tail = tail(view)?;
    state.head = tail.head;
    state.settle_in();
    Ok(Loaded { state, tail, index })
}

/// Folds what other processes have appended since memory was last brought up to date, `most` records
/// of it. After an error memory holds a part of it and must be loaded anew.
///
/// # Errors
/// [`StorageError::Corrupted`] names the first place that does not fit;
/// [`StorageError::HistoryRewound`] where the log ends before what memory holds.
pub fn catch_up(
    view: &dyn ReadView,
    state: &mut State,
    known: &mut Tail,
    index: &mut Index,
    most: u64,
) -> Result<(), StorageError> {
    let end = view.head()?;
    let head = end.min(known.head.saturating_add(most));
    if head == known.head {
        return Ok(());
    }
    if head < known.head {
        return Err(StorageError::HistoryRewound { seen: known.head, found: Some(head) });
    }
    let mark = match view.get(Table::Meta, LIVENESS_ROW)? {
        Some(row) => Some(liveness::parse_mark(&row)?)
            .filter(|mark| mark.head > index.folded_at && mark.head <= head),
        None => None,
    };
    let mut failed = None;
    view.scan(known.head + 1, &mut |seq, bytes| {
        let folded = fold(view, state, seq, bytes).map(|header| {
            index.learn(&header.event, state);
            if mark.as_ref().is_some_and(|mark| mark.head == seq) {
                // Whoever wrote this record folded the liveness table behind it.
                state.tidy();
                index.forget_dooms();
            }
        });
        match folded {
            Ok(()) if seq < head => ControlFlow::Continue(()),
            Ok(()) => ControlFlow::Break(()),
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        }
    })?;
    if let Some(error) = failed {
        return Err(error);
    }
    if let Some(mark) = mark {
        index.folded_at = mark.head;
        // Or this process would fold it once more, at a place that the log does not name.
        index.folded_settles = mark.settles;
        index.needed_rows = liveness::needed(view)?.1;
    }
    *known = tail_at(view, head)?;
    Ok(())
}

/// The end of the log.
fn tail(view: &dyn ReadView) -> Result<Tail, StorageError> {
    tail_at(view, view.head()?)
}

/// The end of the log as it was at a record.
fn tail_at(view: &dyn ReadView, head: u64) -> Result<Tail, StorageError> {
    if head == 0 {
        return Ok(Tail::default());
    }
    let hash = view.record(head)?.and_then(|bytes| Record::stored_hash(&bytes));
    let Some(hash) = hash else { return Err(corrupted(format!("record {head}"))) };
    Ok(Tail { head, hash })
}

fn fold(
    view: &dyn ReadView,
    state: &mut State,
    seq: u64,
    bytes: &[u8],
) -> Result<crate::codec::Header, StorageError> {
    let header = Record::decode_header(bytes).map_err(|error| {
        newer_record(view, seq, bytes)
            .unwrap_or_else(|| corrupted(format!("record {seq}: {error}")))
    })?;
    state.tidy();
    state.apply(seq, header.time_ms, &header.event);
    Ok(header)
}

/// The error of a record that a later version of this program wrote: what it says fits the chain and
/// cannot be folded.
fn newer_record(view: &dyn ReadView, seq: u64, bytes: &[u8]) -> Option<StorageError> {
    let frame = Frame::decode(bytes).ok()?;
    let newer = Newer::of(&frame.header_bytes)?;
    let before = match seq {
        1 => [0; 32],
        _ => Record::stored_hash(&view.record(seq - 1).ok()??)?,
    };
    (chain(&before, seq, &frame.header_bytes) == frame.hash).then(|| newer_kind(seq, newer))
}

/// The refusal of what needs the state, where a later version of this program has written.
pub(super) fn newer_kind(seq: u64, newer: Newer) -> StorageError {
    StorageError::Format {
        reason: format!(
            "record {seq} (event {}) was written by a later version of this program, so what comes \
             after it is not known here; upgrade this one. Meanwhile the log can be read, verified, \
             exported and backed up",
            newer.event
        ),
    }
}

/// Folds the whole log and builds every table anew in `into`, an empty storage's batch.
///
/// # Errors
/// [`StorageError::Corrupted`] names the first place that does not fit.
pub fn replay(view: &dyn ReadView, into: &mut dyn WriteBatch) -> Result<Loaded, StorageError> {
    let mut state = State::default();
    let mut index = Index::default();
    let mut failed = None;
    let mut left = 0_u64;
    view.scan(1, &mut |seq, bytes| {
        if left == 0 {
            index.prepare_fold(&mut state, seq - 1);
        }
        let step = fold(view, &mut state, seq, bytes).and_then(|header| {
            if left == 0 {
                index.write_fold(into, seq - 1)?;
            }
            into.append(seq, bytes)?;
            super::payload::copy_blobs(view, into, seq, bytes)?;
            index.note(into, seq, &header.event, &state)?;
            left = if left == 0 { header.more.unwrap_or(0) } else { left - 1 };
            Ok(())
        });
        match step {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        }
    })?;
    if let Some(error) = failed {
        return Err(error);
    }
    let tail = tail(view)?;
    state.settle_in();
    Ok(Loaded { state, tail, index })
}

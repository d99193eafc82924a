//! The liveness table: two bits for each record, so that opening costs what is live.
//!
//! A row stands for 16,384 records. The low bit of a record says that memory needs it, the high bit
//! that it registered an effect which is doomed. A void effect has a row of its own, since it is rare:
//! 0xff and its id. So has a committed one that a governed rollback undoes: 0xfe and its id.

use std::collections::BTreeSet;

use super::corrupted;
use crate::model::EffectId;
use crate::storage::{ReadView, StorageError, Table, WriteBatch};

/// Records of one row.
pub const ROW_RECORDS: u64 = 16_384;

const ROW_BYTES: usize = (ROW_RECORDS / 4) as usize;
const NEEDED: u8 = 1;
const DOOMED: u8 = 2;

/// How far the table reaches.
pub(super) struct Mark {
    /// The head when it was folded.
    pub(super) head: u64,
    /// Effects settled by then.
    pub(super) settles: u64,
}

/// The meta row of a fold.
pub(super) fn mark(head: u64, settles: u64) -> [u8; 16] {
    let mut row = [0; 16];
    row[..8].copy_from_slice(&head.to_be_bytes());
    row[8..].copy_from_slice(&settles.to_be_bytes());
    row
}

pub(super) fn parse_mark(row: &[u8]) -> Result<Mark, StorageError> {
    let row: [u8; 16] = row.try_into().map_err(|_| corrupted("table meta, row liveness"))?;
    let number = |bytes: &[u8]| bytes.iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
    Ok(Mark { head: number(&row[..8]), settles: number(&row[8..]) })
}

#[allow(clippy::cast_possible_truncation)] // The remainder is below 16,384.
fn slot(seq: u64) -> (usize, u32) {
    let place = (seq % ROW_RECORDS) as usize;
    (place / 4, (place % 4) as u32 * 2)
}

fn bits(row: &[u8], seq: u64) -> u8 {
    let (byte, shift) = slot(seq);
    row.get(byte).map_or(0, |byte| byte >> shift & 3)
}

fn set(row: &mut [u8], seq: u64, value: u8) {
    let (byte, shift) = slot(seq);
    row[byte] |= value << shift;
}

/// Whether a row says that an effect is doomed.
pub(super) fn doomed_in(row: &[u8], effect: EffectId) -> bool {
    bits(row, effect.0) & DOOMED != 0
}

/// The row of a void effect.
pub(super) fn void_row(effect: EffectId) -> [u8; 9] {
    let mut row = [0xff; 9];
    row[1..].copy_from_slice(&effect.0.to_be_bytes());
    row
}

/// The row of a committed effect that a governed rollback undoes.
pub(super) fn compensated_row(effect: EffectId) -> [u8; 9] {
    let mut row = [0xfe; 9];
    row[1..].copy_from_slice(&effect.0.to_be_bytes());
    row
}

/// Writes what memory needs now and what was doomed since the last fold; touches only rows in which
/// something may differ. Returns the rows that mark a record as needed.
pub(super) fn fold(
    batch: &mut dyn WriteBatch,
    needed: &BTreeSet<u64>,
    dooms: &BTreeSet<EffectId>,
    before: &BTreeSet<u64>,
) -> Result<BTreeSet<u64>, StorageError> {
    let now: BTreeSet<u64> = needed.iter().map(|seq| seq / ROW_RECORDS).collect();
    let mut rows: BTreeSet<u64> = now.union(before).copied().collect();
    rows.extend(dooms.iter().map(|effect| effect.0 / ROW_RECORDS));
    for number in rows {
        let old = batch.get(Table::Liveness, &number.to_be_bytes())?;
        let mut row = old.clone().unwrap_or_else(|| vec![0; ROW_BYTES]);
        if row.len() != ROW_BYTES {
            return Err(corrupted(format!("table liveness, row {number}")));
        }
        for byte in &mut row {
            *byte &= 0xaa; // Nothing is needed until the state says so; what is doomed stays doomed.
        }
        let first = number * ROW_RECORDS;
        let range = first..first + ROW_RECORDS;
        for effect in dooms.range(EffectId(range.start)..EffectId(range.end)) {
            set(&mut row, effect.0, DOOMED);
        }
        for seq in needed.range(range) {
            set(&mut row, *seq, NEEDED);
        }
        if old.as_deref() != Some(&row[..]) {
            batch.put(Table::Liveness, &number.to_be_bytes(), &row)?;
        }
    }
    Ok(now)
}

/// The records that memory needs, ascending, of those that the table reaches; and the rows that
/// name one.
pub(super) fn needed(view: &dyn ReadView) -> Result<(Vec<u64>, BTreeSet<u64>), StorageError> {
    let mut needed = Vec::new();
    let mut rows = BTreeSet::new();
    let mut damaged: Option<String> = None;
    view.rows(Table::Liveness, &[0], &mut |key, row| {
        if key.first().is_some_and(|first| *first >= 0xfe) {
            return std::ops::ControlFlow::Break(());
        }
        let (Ok(key), true) = (<[u8; 8]>::try_from(key), row.len() == ROW_BYTES) else {
            damaged = Some("table liveness".to_owned());
            return std::ops::ControlFlow::Break(());
        };
        let number = u64::from_be_bytes(key);
        for (byte, value) in row.iter().enumerate().filter(|(_, value)| **value & 0x55 != 0) {
            for place in 0..4_u64 {
                if value >> (place * 2) & NEEDED != 0 {
                    needed.push(number * ROW_RECORDS + byte as u64 * 4 + place);
                    rows.insert(number);
                }
            }
        }
        std::ops::ControlFlow::Continue(())
    })?;
    match damaged {
        Some(place) => Err(corrupted(place)),
        None => Ok((needed, rows)),
    }
}

//! Verifying: the chain, the payloads, the tables and the invariants of the live state.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use super::{Tail, corrupted, replay};
use crate::codec::{Frame, Newer, Record, chain};
use crate::storage::{MemoryStorage, ReadView, Storage, StorageError, StorageOptions, Table};

/// What was verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifyReport {
    /// Number of records, all of which fit the chain.
    pub records: u64,
    /// The last record and its hash: keep it elsewhere, and a later `verify` finds a cut tail.
    pub head: (u64, [u8; 32]),
    /// The first record of a kind that a later version of this program wrote, if there is one. Then
    /// numbers, chain and payloads were checked to the end; tables and state were not, since they
    /// cannot be built here.
    pub newer: Option<u64>,
}

/// Walks the whole log: numbers, chain, payload hashes; then replays it and compares every table and
/// the live state. With `from_head`, the log must hold that record with that hash.
///
/// # Errors
/// [`StorageError::Corrupted`] names the first bad place.
pub fn verify(
    view: &dyn ReadView,
    from_head: Option<(u64, [u8; 32])>,
) -> Result<VerifyReport, StorageError> {
    let (tail, newer) = chain_of(view, from_head)?;
    let checked = VerifyReport { records: tail.head, head: (tail.head, tail.hash), newer };
    if newer.is_some() {
        return Ok(checked);
    }
    let rebuilt = MemoryStorage::new([0; 16], &StorageOptions::default());
    let mut batch = rebuilt.write()?;
    let replayed = replay(view, batch.as_mut())?;
    let tables =
        [Table::Branches, Table::IdempotencyKeys, Table::Blobs, Table::Liveness, Table::Artifacts];
    for table in tables {
        same_rows(table, view, batch.as_ref())?;
    }
    let loaded = super::load(view)?;
    if let Some(difference) = replayed.state.difference(&loaded.state) {
        return Err(corrupted(format!("the liveness table: {difference}")));
    }
    Ok(checked)
}

fn chain_of(
    view: &dyn ReadView,
    from_head: Option<(u64, [u8; 32])>,
) -> Result<(Tail, Option<u64>), StorageError> {
    let (mut tail, mut newer) = (Tail::default(), None);
    let mut found = from_head.is_none();
    let mut failed = None;
    view.scan(1, &mut |seq, bytes| {
        let checked = check(&tail, seq, bytes);
        match checked {
            Ok((hash, known)) => {
                newer = newer.or((!known).then_some(seq));
                tail = Tail { head: seq, hash };
                if let Some((head, known)) = from_head
                    && head == seq
                {
                    found = known == hash;
                }
                ControlFlow::Continue(())
            }
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        }
    })?;
    if let Some(error) = failed {
        return Err(error);
    }
    if !found {
        let head = from_head.map_or(0, |(head, _)| head);
        return Err(corrupted(format!(
            "record {head}: the log does not hold the head that is known"
        )));
    }
    Ok((tail, newer))
}

/// Checks a record, and says whether this version knows its kind.
fn check(tail: &Tail, seq: u64, bytes: &[u8]) -> Result<([u8; 32], bool), StorageError> {
    if seq != tail.head + 1 {
        return Err(corrupted(format!("record {} is missing", tail.head + 1)));
    }
    let bad = |error| corrupted(format!("record {seq}: {error}"));
    let frame = Frame::decode(bytes).map_err(bad)?;
    let known = match Record::decode_header(bytes) {
        Ok(_) => true,
        Err(_) if Newer::of(&frame.header_bytes).is_some() => false,
        Err(error) => return Err(bad(error)),
    };
    let hash = chain(&tail.hash, seq, &frame.header_bytes);
    if hash != frame.hash {
        return Err(corrupted(format!("record {seq} does not fit the chain")));
    }
    Ok((hash, known))
}

fn same_rows(
    table: Table,
    view: &dyn ReadView,
    rebuilt: &dyn ReadView,
) -> Result<(), StorageError> {
    let rows = |view: &dyn ReadView| {
        let mut rows = BTreeMap::new();
        view.rows(table, &[0], &mut |key, value| {
            rows.insert(key.to_vec(), *blake3::hash(value).as_bytes());
            ControlFlow::Continue(())
        })
        .map(|()| rows)
    };
    let (stored, rebuilt) = (rows(view)?, rows(rebuilt)?);
    for (key, value) in &rebuilt {
        if stored.get(key) != Some(value) {
            return Err(corrupted(format!("table {table}, row {}", super::payload::hex(key))));
        }
    }
    if let Some(key) = stored.keys().find(|key| !rebuilt.contains_key(*key)) {
        return Err(corrupted(format!("table {table}, row {}", super::payload::hex(key))));
    }
    Ok(())
}

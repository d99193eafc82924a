//! Names and directory of the log's segments.
//!
//! Segment `n` is the table `log.n`. Its row in the directory has the key `storage.segment.` and
//! `n` as 8 bytes, and as value the number of its first record, again as 8 bytes; all numbers are
//! big-endian. A record's key is its number, likewise.

use std::ops::Bound;

use heed::types::Bytes;
use heed::{Database, RoTxn};

const DIRECTORY: &[u8] = b"storage.segment.";

pub(super) fn table_name(index: u64) -> String {
    format!("log.{index}")
}

pub(super) fn directory_key(index: u64) -> Vec<u8> {
    [DIRECTORY, &index.to_be_bytes()].concat()
}

/// The directory from segment `from` on: index and first record of each.
pub(super) fn directory(
    meta: &Database<'_, Bytes, Bytes>,
    txn: &RoTxn,
    from: u64,
) -> Result<Vec<(u64, u64)>, heed::Error> {
    let start = directory_key(from);
    let range = (Bound::Included(start.as_slice()), Bound::Unbounded);
    let mut found = Vec::new();
    for row in meta.range(txn, &range)? {
        let (key, value) = row?;
        let Some(index) = key.strip_prefix(DIRECTORY) else { break };
        let expected = from + found.len() as u64;
        // A hole in the directory, or a row of another shape, is damage.
        match (number(index), number(value)) {
            (Some(index), Some(first)) if index == expected => found.push((index, first)),
            _ => return Err(heed::Error::Mdb(heed::MdbError::Corrupted)),
        }
    }
    Ok(found)
}

/// A number in its 8 bytes.
pub(super) fn number(bytes: &[u8]) -> Option<u64> {
    bytes.try_into().ok().map(u64::from_be_bytes)
}

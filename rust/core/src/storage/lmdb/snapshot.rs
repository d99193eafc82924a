//! Reading one state, whether it is a committed one or a batch's own.

use std::ops::Bound;

use heed::RoTxn;

use super::opened::{Opened, Segment};
use super::segment;
use crate::storage::{RecordVisitor, RowVisitor, StorageError, Table, is_own_key};

pub(super) struct Snapshot<'s> {
    pub(super) opened: &'s Opened,
    pub(super) txn: &'s RoTxn<'s>,
    /// Exactly the segments of this state.
    pub(super) segments: &'s [Segment],
    pub(super) head: u64,
}

impl<'s> Snapshot<'s> {
    /// The head that the newest segment gives.
    pub(super) fn find_head(
        opened: &Opened,
        txn: &RoTxn,
        segments: &[Segment],
    ) -> Result<u64, StorageError> {
        let newest = segments.last().ok_or(StorageError::Closed)?;
        let last = newest.db.last(txn).map_err(|e| opened.fault("read the log's end", &e))?;
        match last {
            Some((key, _)) => segment::number(key)
                .filter(|head| *head >= newest.first)
                .ok_or_else(|| StorageError::corrupted("the log's last key")),
            None => Ok(newest.first.saturating_sub(1)),
        }
    }

    pub(super) fn record(&self, seq: u64) -> Result<Option<&'s [u8]>, StorageError> {
        let Some(segment) = self.segment_of(seq).and_then(|at| self.segments.get(at)) else {
            return Ok(None);
        };
        let found = segment.db.get(self.txn, &seq.to_be_bytes());
        found.map_err(|e| self.opened.fault(&format!("read record {seq}"), &e))
    }

    fn segment_of(&self, seq: u64) -> Option<usize> {
        self.segments.partition_point(|segment| segment.first <= seq).checked_sub(1)
    }

    pub(super) fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        // LMDB refuses to look for keys that it could not hold.
        if key.is_empty() || key.len() > crate::storage::MAX_KEY_BYTES {
            return Ok(None);
        }
        let found = self.opened.tables[table.index()].get(self.txn, key);
        let found = found.map_err(|e| self.opened.fault(&format!("read table {table}"), &e))?;
        Ok(found.map(<[u8]>::to_vec))
    }

    /// Visits the records from `from` on; `true` if the visitor ended it.
    pub(super) fn scan(
        &self,
        from: u64,
        visit: &mut RecordVisitor<'_>,
    ) -> Result<bool, StorageError> {
        let mut next = from.max(1);
        if next > self.head {
            return Ok(false);
        }
        let missing = |seq: u64| StorageError::corrupted(format!("record {seq}: it is missing"));
        let start = self.segment_of(next).ok_or_else(|| missing(next))?;
        for segment in self.segments.iter().skip(start) {
            let key = next.to_be_bytes();
            let range = (Bound::Included(key.as_slice()), Bound::Unbounded);
            let began = next;
            let fail = |e: &heed::Error| self.opened.fault(&format!("scan from {began}"), e);
            for row in segment.db.range(self.txn, &range).map_err(|e| fail(&e))? {
                let (key, record) = row.map_err(|e| fail(&e))?;
                if segment::number(key) != Some(next) {
                    return Err(missing(next));
                }
                if visit(next, record).is_break() {
                    return Ok(true);
                }
                next += 1;
            }
        }
        if next <= self.head { Err(missing(next)) } else { Ok(false) }
    }

    pub(super) fn rows(
        &self,
        table: Table,
        from: &[u8],
        visit: &mut RowVisitor<'_>,
    ) -> Result<(), StorageError> {
        let fail = |e: &heed::Error| self.opened.fault(&format!("read table {table}"), e);
        let db = self.opened.tables[table.index()];
        // LMDB cannot look for a key that it could not hold: an empty one means the beginning,
        // and none that is longer than the limit can equal its own beginning.
        let start = match from.get(..crate::storage::MAX_KEY_BYTES + 1) {
            _ if from.is_empty() => Bound::Unbounded,
            Some(long) => Bound::Excluded(&long[..crate::storage::MAX_KEY_BYTES]),
            None => Bound::Included(from),
        };
        for row in db.range(self.txn, &(start, Bound::Unbounded)).map_err(|e| fail(&e))? {
            let (key, value) = row.map_err(|e| fail(&e))?;
            if !is_own_key(table, key) && visit(key, value).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Bytes of the records from `from` on in one segment.
    pub(super) fn segment_bytes(&self, at: usize, from: u64) -> Result<u64, StorageError> {
        let fail = |e: &heed::Error| self.opened.fault("measure the newest segment", e);
        let segment = self.segments.get(at).ok_or(StorageError::Closed)?;
        let key = from.to_be_bytes();
        let range = (Bound::Included(key.as_slice()), Bound::Unbounded);
        let mut bytes = 0;
        for row in segment.db.range(self.txn, &range).map_err(|e| fail(&e))? {
            bytes += row.map_err(|e| fail(&e))?.1.len() as u64;
        }
        Ok(bytes)
    }
}

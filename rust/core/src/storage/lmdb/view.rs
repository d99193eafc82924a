//! A view of one committed state: an LMDB read transaction.

use std::borrow::Cow;
use std::mem::ManuallyDrop;
use std::process;
use std::sync::Arc;

use heed::{RoTxn, WithoutTls};

use super::opened::{Opened, Segment};
use super::snapshot::Snapshot;
use crate::storage::{ReadView, RecordVisitor, RowVisitor, StorageError, Table};

pub(super) struct View {
    // Ends before `opened` goes, or never: see `Drop`.
    txn: ManuallyDrop<RoTxn<'static, WithoutTls>>,
    segments: Arc<Vec<Segment>>,
    count: usize,
    head: u64,
    opened: Arc<Opened>,
}

impl View {
    pub(super) fn begin(opened: &Arc<Opened>) -> Result<Self, StorageError> {
        opened.check_process()?;
        loop {
            // Both are taken before the transaction begins: it knows only handles that were open
            // by then, and its state cannot be older than this head.
            let segments = opened.segments();
            let seen = opened.seen();
            let txn = opened.begin_read()?;
            let count = opened.count_segments(&txn)?;
            if count > segments.len() {
                drop(txn);
                opened.adopt_segments()?;
                continue;
            }
            let head = Snapshot::find_head(opened, &txn, &segments[..count])?;
            opened.note_head(seen, head)?;
            // SAFETY: only the lifetime changes. The view keeps the `Opened` that the
            // transaction borrows from, and ends the transaction first.
            let txn = unsafe {
                std::mem::transmute::<RoTxn<'_, WithoutTls>, RoTxn<'static, WithoutTls>>(txn)
            };
            let txn = ManuallyDrop::new(txn);
            return Ok(Self { txn, segments, count, head, opened: Arc::clone(opened) });
        }
    }

    fn snapshot(&self) -> Result<Snapshot<'_>, StorageError> {
        self.opened.check_process()?;
        Ok(Snapshot {
            opened: &self.opened,
            txn: &self.txn,
            segments: &self.segments[..self.count],
            head: self.head,
        })
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // In a child of `fork` the transaction is the parent's.
        if process::id() == self.opened.pid {
            // SAFETY: nothing uses the transaction afterwards.
            unsafe { ManuallyDrop::drop(&mut self.txn) };
        }
    }
}

impl ReadView for View {
    fn head(&self) -> Result<u64, StorageError> {
        Ok(self.snapshot()?.head)
    }

    fn record(&self, seq: u64) -> Result<Option<Cow<'_, [u8]>>, StorageError> {
        Ok(self.snapshot()?.record(seq)?.map(Cow::Borrowed))
    }

    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        self.snapshot()?.get(table, key)
    }

    fn scan(&self, from: u64, visit: &mut RecordVisitor<'_>) -> Result<(), StorageError> {
        self.snapshot()?.scan(from, visit).map(|_| ())
    }

    fn rows(
        &self,
        table: Table,
        from: &[u8],
        visit: &mut RowVisitor<'_>,
    ) -> Result<(), StorageError> {
        self.snapshot()?.rows(table, from, visit)
    }
}

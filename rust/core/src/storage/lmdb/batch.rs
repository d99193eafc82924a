//! A batch: an LMDB write transaction.
//!
//! LMDB's wrapper makes a table inside a transaction only together with its commit. So the
//! records of a segment that begins in this batch wait in memory until then.

use std::borrow::Cow;
use std::marker::PhantomData;
use std::process;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use heed::types::Bytes;
use heed::{CommitOrAbort, Database, DatabaseOpener, MdbError, PutFlags, RwTxn, WithoutTls};

use super::fault;
use super::opened::{Handles, Opened, Segment, Tail};
use super::segment;
use super::snapshot::Snapshot;
use crate::storage::{
    CommitFailure, ReadView, RecordVisitor, RowVisitor, StorageError, Table, WriteBatch, WriteTurn,
    check_key, check_next,
};

/// How many chunks of the reserve one batch writes at most before it begins.
const CHUNKS_AHEAD: u32 = 4;

/// A segment that begins in this batch.
struct NewSegment {
    first: u64,
    records: Vec<Vec<u8>>,
}

pub(super) struct Batch<'s> {
    // `None` once it has been committed or aborted. Ends before `opened` goes.
    txn: Option<RwTxn<'static>>,
    segments: Arc<Vec<Segment>>,
    new_segments: Vec<NewSegment>,
    /// The newest segment, be it new or not.
    tail: Tail,
    /// Number of the newest segment's first record.
    tail_first: u64,
    broken: bool,
    opened: Arc<Opened>,
    _turn: WriteTurn<'s>,
    // LMDB's write transaction belongs to the thread that began it.
    _one_thread: PhantomData<*const ()>,
}

impl<'s> Batch<'s> {
    pub(super) fn begin(opened: &Arc<Opened>, turn: WriteTurn<'s>) -> Result<Self, StorageError> {
        opened.check_process()?;
        let Some(reserve) = &opened.reserve else { return Err(StorageError::ReadOnly) };
        if opened.must_reopen.load(Ordering::Acquire) {
            return Err(StorageError::Closed);
        }
        opened.check_files()?;
        reserve.refill(&opened.owner, opened.used_bytes(), CHUNKS_AHEAD);
        loop {
            let segments = opened.segments();
            let seen = opened.seen();
            // SAFETY: the batch keeps the `Opened` alive for longer than its transaction.
            let env = unsafe { opened.env() };
            let txn = env.write_txn().map_err(|e| opened.fault("begin a write transaction", &e))?;
            let count = opened.count_segments(&txn)?;
            if count > segments.len() {
                drop(txn);
                opened.adopt_segments()?;
                continue;
            }
            let Some(newest) = segments.get(count - 1) else { return Err(StorageError::Closed) };
            if count < segments.len() {
                return Err(StorageError::HistoryRewound { seen, found: Some(newest.first) });
            }
            let tail_first = newest.first;
            let head = Snapshot::find_head(opened, &txn, &segments[..count])?;
            opened.note_head(seen, head)?;
            let tail = find_tail(opened, &txn, &segments[..count], head)?;
            return Ok(Self {
                txn: Some(txn),
                segments,
                new_segments: Vec::new(),
                tail,
                tail_first,
                broken: false,
                opened: Arc::clone(opened),
                _turn: turn,
                _one_thread: PhantomData,
            });
        }
    }

    fn snapshot(&self) -> Result<Snapshot<'_>, StorageError> {
        self.opened.check_process()?;
        let txn = self.txn.as_ref().ok_or(StorageError::Closed)?;
        let stored = self.new_segments.first().map_or(self.tail.head, |new| new.first - 1);
        Ok(Snapshot { opened: &self.opened, txn, segments: &self.segments, head: stored })
    }

    /// Runs one write, and remembers that the batch is lost if it fails.
    fn change(
        &mut self,
        op: &str,
        write: impl FnOnce(&Self, &mut RwTxn<'static>) -> Result<(), heed::Error>,
    ) -> Result<(), StorageError> {
        let Some(mut txn) = self.txn.take() else { return Err(StorageError::Closed) };
        let answer = write(self, &mut txn);
        self.txn = Some(txn);
        answer.map_err(|e| {
            self.broken = true;
            self.opened.fault(op, &e)
        })
    }

    /// Whether the newest segment is full, so that the next record begins another.
    fn is_sealed(&mut self) -> Result<bool, StorageError> {
        let limits = self.opened.format.segments;
        let records = (self.tail.head + 1).saturating_sub(self.tail_first);
        if records >= limits.records {
            return Ok(true);
        }
        let bytes = match self.tail.bytes {
            Some(bytes) => bytes,
            // The records lie in the segment's pages, so they are no more than these.
            None if self.newest_pages_bytes()? < limits.bytes => return Ok(false),
            None => self.snapshot()?.segment_bytes(self.tail.segment, 0)?,
        };
        self.tail.bytes = Some(bytes);
        Ok(bytes >= limits.bytes)
    }

    /// Bytes of the pages of the newest segment that is on disk.
    fn newest_pages_bytes(&self) -> Result<u64, StorageError> {
        let txn = self.txn.as_ref().ok_or(StorageError::Closed)?;
        let newest = self.segments.last().ok_or(StorageError::Closed)?;
        let stat = newest.db.stat(txn);
        let stat = stat.map_err(|e| self.opened.fault("measure the newest segment", &e))?;
        Ok(stat.non_free_page_size() as u64)
    }

    fn commit_txn(&mut self) -> Result<(), heed::Error> {
        let Some(txn) = self.txn.take() else { return Err(heed::Error::Mdb(MdbError::BadTxn)) };
        if self.new_segments.is_empty() {
            return txn.commit();
        }
        let opened = Arc::clone(&self.opened);
        let held = opened.lock_handles();
        // SAFETY: the transaction ends in here, and the answer holds handles only.
        let env = unsafe { opened.env() };
        let meta = opened.tables[Table::Meta.index()];
        let index = self.segments.len() as u64;
        let new_segments = std::mem::take(&mut self.new_segments);
        let answer = env.create_databases_and_commit(txn, |opener, txn| {
            let handles = create_segments(opener, txn, &meta, index, &new_segments)?;
            Ok::<_, heed::Error>(CommitOrAbort::<Handles<'_>, ()>::Commit(handles))
        })?;
        if let CommitOrAbort::Commit(new) = answer {
            opened.add_segments(&held, new);
        }
        Ok(())
    }

    /// Whether LMDB failed while it wrote the meta page: it then refuses everything.
    fn is_fatal(&self) -> bool {
        matches!(self.opened.begin_read(), Err(StorageError::Closed))
    }
}

fn create_segments<'e>(
    opener: &DatabaseOpener<'e, WithoutTls>,
    txn: &mut RwTxn<'e>,
    meta: &Database<'_, Bytes, Bytes>,
    first_index: u64,
    new_segments: &[NewSegment],
) -> Result<Handles<'e>, heed::Error> {
    let mut handles = Vec::new();
    for (index, new) in (first_index..).zip(new_segments) {
        let db: Database<'e, Bytes, Bytes> =
            opener.create_database(txn, Some(&segment::table_name(index)))?;
        meta.put(txn, &segment::directory_key(index), &new.first.to_be_bytes())?;
        for (seq, record) in (new.first..).zip(&new.records) {
            db.put_with_flags(txn, PutFlags::APPEND, &seq.to_be_bytes(), record)?;
        }
        handles.push((new.first, db));
    }
    Ok(Handles(handles))
}

/// How full the newest segment is: what is remembered, and what others have appended since.
fn find_tail(
    opened: &Opened,
    txn: &RwTxn<'_>,
    segments: &[Segment],
    head: u64,
) -> Result<Tail, StorageError> {
    let at = segments.len() - 1;
    let known = opened.tail.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(Tail { segment, head: known_head, bytes: Some(bytes) }) = *known else {
        return Ok(Tail { segment: at, head, bytes: None });
    };
    if segment != at || known_head > head {
        return Ok(Tail { segment: at, head, bytes: None });
    }
    let added = if known_head == head {
        0
    } else {
        Snapshot { opened, txn, segments, head }.segment_bytes(at, known_head + 1)?
    };
    Ok(Tail { segment: at, head, bytes: Some(bytes + added) })
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        // In a child of `fork` the transaction is the parent's: it must not even be aborted.
        if process::id() != self.opened.pid {
            std::mem::forget(self.txn.take());
        }
        drop(self.txn.take());
    }
}

impl ReadView for Batch<'_> {
    fn head(&self) -> Result<u64, StorageError> {
        self.opened.check_process()?;
        Ok(self.tail.head)
    }

    fn record(&self, seq: u64) -> Result<Option<Cow<'_, [u8]>>, StorageError> {
        let own = self.new_segments.iter().rev().find(|new| new.first <= seq);
        let Some(own) = own else { return Ok(self.snapshot()?.record(seq)?.map(Cow::Borrowed)) };
        let at = usize::try_from(seq - own.first).ok();
        let found = at.and_then(|at| own.records.get(at));
        Ok(found.map(|record| Cow::Borrowed(record.as_slice())))
    }

    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        self.snapshot()?.get(table, key)
    }

    fn scan(&self, from: u64, visit: &mut RecordVisitor<'_>) -> Result<(), StorageError> {
        if self.snapshot()?.scan(from, visit)? {
            return Ok(());
        }
        for new in &self.new_segments {
            for (seq, record) in (new.first..).zip(&new.records) {
                if seq >= from && visit(seq, record).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
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

impl WriteBatch for Batch<'_> {
    fn append(&mut self, seq: u64, record: &[u8]) -> Result<(), StorageError> {
        self.opened.check_process()?;
        check_next(self.tail.head, seq)?;
        if self.is_sealed()? {
            self.new_segments.push(NewSegment { first: seq, records: Vec::new() });
            self.tail.segment += 1;
            self.tail.bytes = Some(0);
            self.tail_first = seq;
        }
        if let Some(new) = self.new_segments.last_mut() {
            new.records.push(record.to_vec());
        } else {
            self.change("append a record", |batch, txn| {
                let newest = batch.segments.get(batch.tail.segment);
                let db = newest.ok_or(heed::Error::Mdb(MdbError::BadDbi))?.db;
                db.put_with_flags(txn, PutFlags::APPEND, &seq.to_be_bytes(), record)
            })?;
        }
        self.tail.head = seq;
        self.tail.bytes = self.tail.bytes.map(|bytes| bytes + record.len() as u64);
        Ok(())
    }

    fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<(), StorageError> {
        self.opened.check_process()?;
        check_key(table, key)?;
        let db = self.opened.tables[table.index()];
        self.change("put a row", |_, txn| db.put(txn, key, value))
    }

    fn delete(&mut self, table: Table, key: &[u8]) -> Result<(), StorageError> {
        self.opened.check_process()?;
        check_key(table, key)?;
        let db = self.opened.tables[table.index()];
        self.change("delete a row", |_, txn| db.delete(txn, key).map(|_| ()))
    }

    fn commit(mut self: Box<Self>) -> Result<(), StorageError> {
        self.opened.check_process()?;
        if self.broken {
            return Err(StorageError::NotCommitted { cause: CommitFailure::BatchBroken });
        }
        if let Err(error) = self.commit_txn() {
            let failure = fault::of_commit(self.is_fatal(), &error);
            if failure.needs_reopen() {
                self.opened.must_reopen.store(true, Ordering::Release);
            }
            return Err(failure);
        }
        *self.opened.tail.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.tail);
        self.opened.shared.announce(self.tail.head);
        self.opened.note_head(0, self.tail.head)
    }
}

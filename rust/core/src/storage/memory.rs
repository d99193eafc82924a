//! A storage in memory, for tests and for stores that need not outlive their process.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Bound;
use std::path::Path;
use std::process;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::turn::{Turn, WriteTurn};
use super::{
    FormatRecord, ReadView, RecordVisitor, RowVisitor, Storage, StorageError, StorageOptions,
    StorageStats, Table, WriteBatch, check_key, check_next,
};

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;
/// `None`: deleted by the batch.
type Changes = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

#[derive(Clone, Default)]
struct State {
    records: Vec<Arc<[u8]>>,
    tables: [Rows; 6],
}

/// Records and tables in memory. A view keeps the state that it began with; a commit copies what
/// a living view still shows.
pub struct MemoryStorage {
    state: Mutex<Arc<State>>,
    turn: Turn,
    /// Counts batches; waiters sleep on it.
    changes: Mutex<u32>,
    changed: Condvar,
    format: FormatRecord,
    read_only: bool,
}

impl MemoryStorage {
    /// An empty storage named `store_id`. Of the options, `read_only`, `segments` and
    /// `created_ms` count.
    pub fn new(store_id: [u8; 16], options: &StorageOptions) -> Self {
        Self {
            state: Mutex::default(),
            turn: Turn::default(),
            changes: Mutex::default(),
            changed: Condvar::new(),
            format: FormatRecord {
                version: 0,
                min_reader: 0,
                min_writer: 0,
                lmdb_data_version: 0,
                page_size_bytes: 0,
                little_endian: cfg!(target_endian = "little"),
                map_size_bytes: 0,
                segments: options.segments,
                store_id,
                created_ms: options.created_ms,
            },
            read_only: options.read_only,
        }
    }

    // The state is replaced in one step, so a poisoned lock still guards a whole one.
    fn state(&self) -> MutexGuard<'_, Arc<State>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for MemoryStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStorage").finish_non_exhaustive()
    }
}

impl Storage for MemoryStorage {
    fn read(&self) -> Result<Box<dyn ReadView + '_>, StorageError> {
        Ok(Box::new(View(Arc::clone(&self.state()))))
    }

    fn take_turn(&self, patience: Duration) -> Result<WriteTurn<'_>, StorageError> {
        if self.read_only {
            return Err(StorageError::ReadOnly);
        }
        self.turn.take(patience)
    }

    fn durable_head(&self) -> u64 {
        self.state().records.len() as u64
    }

    fn changes(&self) -> u32 {
        *self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for_change(&self, seen: u32, at_most: Duration) {
        let changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        if *changes == seen {
            drop(self.changed.wait_timeout(changes, at_most));
        }
    }

    fn announce(&self) {
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        *changes = changes.wrapping_add(1);
        self.changed.notify_all();
    }

    fn write_in<'s>(
        &'s self,
        turn: WriteTurn<'s>,
    ) -> Result<Box<dyn WriteBatch + 's>, StorageError> {
        Ok(Box::new(Batch {
            base: View(Arc::clone(&self.state())),
            appended: Vec::new(),
            changes: Default::default(),
            storage: self,
            _turn: turn,
            _one_thread: PhantomData,
        }))
    }

    fn stats(&self) -> Result<StorageStats, StorageError> {
        let state = Arc::clone(&self.state());
        let mut rows = [0; 6];
        for (count, table) in rows.iter_mut().zip(&state.tables) {
            *count = table.len() as u64;
        }
        Ok(StorageStats {
            head: state.records.len() as u64,
            segments: 1,
            rows,
            ..StorageStats::default()
        })
    }

    fn format(&self) -> FormatRecord {
        self.format.clone()
    }

    fn reserve_ok(&self) -> Result<(), StorageError> {
        Ok(())
    }

    fn backup(&self, _to: &Path, _marks: &[(&[u8], &[u8])]) -> Result<(), StorageError> {
        Err(StorageError::Options {
            option: "backup",
            reason: "a store in memory has no files to copy; export it instead".to_owned(),
        })
    }

    fn process_has_open(&self, pid: u32) -> Result<bool, StorageError> {
        Ok(pid == process::id())
    }

    // Nobody else can open a store in memory.
    fn hold(&self, _seq: u64) -> Result<(), StorageError> {
        Ok(())
    }

    fn let_go(&self, _seq: u64) -> Result<(), StorageError> {
        Ok(())
    }

    fn is_held_elsewhere(&self, _seq: u64) -> Result<bool, StorageError> {
        Ok(false)
    }

    fn reopen(&self) -> Result<(), StorageError> {
        Ok(())
    }
}

struct View(Arc<State>);

impl View {
    fn head_number(&self) -> u64 {
        self.0.records.len() as u64
    }

    fn table(&self, table: Table) -> &Rows {
        &self.0.tables[table.index()]
    }
}

/// Where a record lies, if its number can be a position at all.
fn position(seq: u64) -> Option<usize> {
    usize::try_from(seq.checked_sub(1)?).ok()
}

impl ReadView for View {
    fn head(&self) -> Result<u64, StorageError> {
        Ok(self.head_number())
    }

    fn record(&self, seq: u64) -> Result<Option<Cow<'_, [u8]>>, StorageError> {
        let found = position(seq).and_then(|at| self.0.records.get(at));
        Ok(found.map(|record| Cow::Borrowed(&**record)))
    }

    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        Ok(self.table(table).get(key).cloned())
    }

    fn scan(&self, from: u64, visit: &mut RecordVisitor<'_>) -> Result<(), StorageError> {
        let from = from.max(1);
        if from > self.head_number() {
            return Ok(());
        }
        let skip = position(from).unwrap_or(usize::MAX);
        for (seq, record) in (from..).zip(self.0.records.iter().skip(skip)) {
            if visit(seq, record).is_break() {
                break;
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
        let range = (Bound::Included(from), Bound::Unbounded);
        for (key, value) in self.table(table).range::<[u8], _>(range) {
            if visit(key, value).is_break() {
                break;
            }
        }
        Ok(())
    }
}

struct Batch<'s> {
    base: View,
    appended: Vec<Arc<[u8]>>,
    changes: [Changes; 6],
    storage: &'s MemoryStorage,
    _turn: WriteTurn<'s>,
    // As with LMDB, a batch stays on its thread: code that is wrong there must not compile here.
    _one_thread: PhantomData<*const ()>,
}

impl ReadView for Batch<'_> {
    fn head(&self) -> Result<u64, StorageError> {
        Ok(self.base.head_number() + self.appended.len() as u64)
    }

    fn record(&self, seq: u64) -> Result<Option<Cow<'_, [u8]>>, StorageError> {
        let Some(own) = seq.checked_sub(self.base.head_number()).filter(|own| *own > 0) else {
            return self.base.record(seq);
        };
        let found = position(own).and_then(|at| self.appended.get(at));
        Ok(found.map(|record| Cow::Borrowed(&**record)))
    }

    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        match self.changes[table.index()].get(key) {
            Some(change) => Ok(change.clone()),
            None => self.base.get(table, key),
        }
    }

    fn scan(&self, from: u64, visit: &mut RecordVisitor<'_>) -> Result<(), StorageError> {
        let mut ended = false;
        self.base.scan(from, &mut |seq, record| {
            let flow = visit(seq, record);
            ended = flow.is_break();
            flow
        })?;
        if ended {
            return Ok(());
        }
        let first_own = self.base.head_number() + 1;
        for (seq, record) in (first_own..).zip(&self.appended) {
            if seq >= from && visit(seq, record).is_break() {
                break;
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
        let range = (Bound::Included(from), Bound::Unbounded);
        let mut stored = self.base.table(table).range::<[u8], _>(range).peekable();
        let mut changed = self.changes[table.index()].range::<[u8], _>(range).peekable();
        loop {
            let own_first = match (stored.peek(), changed.peek()) {
                (None, None) => return Ok(()),
                (Some(_), None) => false,
                (None, Some(_)) => true,
                (Some((stored_key, _)), Some((changed_key, _))) => changed_key <= stored_key,
            };
            let row = if own_first {
                let Some((key, change)) = changed.next() else { return Ok(()) };
                stored.next_if(|(stored_key, _)| *stored_key == key);
                change.as_ref().map(|value| (key, value))
            } else {
                stored.next()
            };
            if let Some((key, value)) = row
                && visit(key, value).is_break()
            {
                return Ok(());
            }
        }
    }
}

impl WriteBatch for Batch<'_> {
    fn append(&mut self, seq: u64, record: &[u8]) -> Result<(), StorageError> {
        check_next(self.head()?, seq)?;
        self.appended.push(record.into());
        Ok(())
    }

    fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<(), StorageError> {
        check_key(table, key)?;
        self.changes[table.index()].insert(key.to_vec(), Some(value.to_vec()));
        Ok(())
    }

    fn delete(&mut self, table: Table, key: &[u8]) -> Result<(), StorageError> {
        check_key(table, key)?;
        self.changes[table.index()].insert(key.to_vec(), None);
        Ok(())
    }

    fn commit(self: Box<Self>) -> Result<(), StorageError> {
        let Self { base, appended, changes, storage, _turn: turn, .. } = *self;
        // Without this, the batch's own view of the old state would force a copy of it.
        drop(base);
        let mut shared = storage.state();
        let state = Arc::make_mut(&mut shared);
        state.records.extend(appended);
        for (rows, changes) in state.tables.iter_mut().zip(changes) {
            for (key, change) in changes {
                match change {
                    Some(value) => drop(rows.insert(key, value)),
                    None => drop(rows.remove(&key)),
                }
            }
        }
        drop(shared);
        drop(turn);
        storage.announce();
        Ok(())
    }
}

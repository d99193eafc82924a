//! The storage on LMDB.
//!
//! Invariants:
//! - Every flag of LMDB that trades durability or locks for speed is absent.
//! - One process opens one file once; see `registry`.
//! - A child of `fork` never calls LMDB on what it inherited, except to close it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::turn::Turn;
use super::{
    FormatRecord, ReadView, Storage, StorageError, StorageOptions, StorageStats, Table,
    WRITE_PATIENCE, WriteBatch, WriteTurn,
};
use files::{DATA_FILE, FileId};
pub(crate) use gate::Pass;
use opened::Opened;

mod batch;
mod create;
mod fault;
mod files;
mod format;
mod free_pages;
mod gate;
mod meta_page;
mod opened;
mod owner;
mod page;
mod readers;
mod registry;
mod reserve;
mod segment;
mod shared;
mod snapshot;
mod view;

/// How long [`Storage::reopen`] waits until every view of the store is gone.
const REOPEN_PATIENCE: Duration = Duration::from_secs(10);

/// Longest sleep of a waiter that nobody of another process can wake.
const BLIND_SLICE: Duration = Duration::from_millis(50);

/// A store in a directory, shared by threads and processes of one machine.
pub struct LmdbStorage {
    pid: u32,
    dir: PathBuf,
    options: StorageOptions,
    format: FormatRecord,
    state: Arc<State>,
    turn: Turn,
    id: FileId,
}

/// The open files; `None` when a reopen failed.
struct State(Mutex<Option<Arc<Opened>>>);

impl State {
    // The content is replaced in one step, so a poisoned lock still guards a whole one.
    fn lock(&self) -> MutexGuard<'_, Option<Arc<Opened>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// In a child of `fork`, closes what was inherited. If a thread of the parent held the lock
    /// at the fork, nothing is done, and opening the same files anew will be refused.
    fn close_inherited(&self) {
        if let Ok(opened) = self.0.try_lock()
            && let Some(opened) = &*opened
        {
            opened.close_inherited();
        }
    }
}

impl LmdbStorage {
    /// Opens the store in `dir`; with `create` it is made if it is not there. A second open in
    /// one process, by whatever path, returns the same handle.
    ///
    /// # Errors
    /// [`StorageError::Options`]: an option that cannot be used, or one that differs from those
    /// of the handle that is open. [`StorageError::Format`], [`StorageError::Truncated`],
    /// [`StorageError::Corrupted`]: the files are not what they should be.
    /// [`StorageError::Io`]: there is no store, or the system refused something.
    pub fn open(dir: &Path, options: &StorageOptions) -> Result<Arc<Self>, StorageError> {
        let data = dir.join(DATA_FILE);
        loop {
            let mut entries = registry::lock()?;
            registry::forget_inherited(&mut entries);
            let id = match FileId::of(&data)? {
                Some(id) => {
                    if !options.read_only {
                        create::finish(dir)?;
                    }
                    id
                }
                None if options.create && !options.read_only => {
                    let there = if dir.is_dir() { dir } else { files::parent_of(dir) };
                    Self::check_file_system(there, options)?;
                    create::create(dir, options)?;
                    FileId::of(&data)?.ok_or_else(|| missing(dir))?
                }
                None => return Err(missing(dir)),
            };
            if let Some(entry) = entries.get(&id) {
                let handle = entry.handle.upgrade();
                // Whoever drops the last handle needs this lock, be it this very thread.
                drop(entries);
                if let Some(handle) = handle {
                    handle.check_same_options(options)?;
                    return Ok(handle);
                }
                // The last owner of the handle is closing it just now.
                thread::sleep(Duration::from_millis(1));
                continue;
            }
            Self::check_file_system(dir, options)?;
            let dir = opened::real_path(dir)?;
            let opened = Opened::open(&dir, options)?;
            let handle = Arc::new(Self {
                pid: process::id(),
                dir,
                options: options.clone(),
                format: opened.format.clone(),
                state: Arc::new(State(Mutex::new(Some(Arc::new(opened))))),
                turn: Turn::default(),
                id,
            });
            let entry = registry::Entry {
                pid: handle.pid,
                handle: Arc::downgrade(&handle),
                state: Arc::clone(&handle.state),
            };
            entries.insert(id, entry);
            return Ok(handle);
        }
    }

    fn check_file_system(dir: &Path, options: &StorageOptions) -> Result<(), StorageError> {
        if options.allow_network_fs { Ok(()) } else { files::refuse_network_fs(dir) }
    }

    fn check_same_options(&self, given: &StorageOptions) -> Result<(), StorageError> {
        let mine = &self.options;
        let map_differs =
            given.map_size_bytes.is_some_and(|given| given != self.format.map_size_bytes);
        let option = if mine.read_only != given.read_only {
            "read_only"
        } else if map_differs {
            "map_size"
        } else if mine.max_readers != given.max_readers {
            "max_readers"
        } else if mine.reserve_bytes != given.reserve_bytes {
            "reserve_bytes"
        } else {
            return Ok(());
        };
        let reason = "this process has the store open with another value; give the same, or close \
                      it first"
            .to_owned();
        Err(StorageError::Options { option, reason })
    }

    fn check_process(&self) -> Result<(), StorageError> {
        if process::id() == self.pid {
            return Ok(());
        }
        Err(StorageError::Forked { opened_by: self.pid })
    }

    fn opened(&self) -> Result<Arc<Opened>, StorageError> {
        // First of all: a child of `fork` may find the lock held by a thread that it has not.
        self.check_process()?;
        self.state.lock().clone().ok_or(StorageError::Closed)
    }

    /// The turn, for this thread, and the gate.
    fn turn_and_gate(&self, patience: Duration) -> Result<WriteTurn<'_>, StorageError> {
        let began = Instant::now();
        self.check_process()?;
        let mut turn = self.turn.take(patience)?;
        let opened = self.opened()?;
        turn.pass = Some(gate::enter(&opened, patience.saturating_sub(began.elapsed()))?);
        Ok(turn)
    }
}

impl fmt::Debug for LmdbStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LmdbStorage").field("dir", &self.dir).finish_non_exhaustive()
    }
}

fn missing(dir: &Path) -> StorageError {
    StorageError::Io {
        op: format!("open {}", dir.display()),
        source: "there is no store; create it, or check the path".to_owned(),
    }
}

impl Storage for LmdbStorage {
    fn read(&self) -> Result<Box<dyn ReadView + '_>, StorageError> {
        Ok(Box::new(view::View::begin(&self.opened()?)?))
    }

    fn take_turn(&self, patience: Duration) -> Result<WriteTurn<'_>, StorageError> {
        self.check_process()?;
        if self.options.read_only {
            return Err(StorageError::ReadOnly);
        }
        self.turn_and_gate(patience)
    }

    fn write_in<'s>(
        &'s self,
        turn: WriteTurn<'s>,
    ) -> Result<Box<dyn WriteBatch + 's>, StorageError> {
        Ok(Box::new(batch::Batch::begin(&self.opened()?, turn)?))
    }

    fn durable_head(&self) -> u64 {
        // Asked before every batch; the gate looks right afterwards whether the page still stands.
        self.opened().map_or(0, |opened| opened.shared.known().head().load(Ordering::SeqCst))
    }

    fn changes(&self) -> u32 {
        let page = self.opened().and_then(|opened| opened.shared.page());
        page.map_or(0, |page| page.changes_word().load(Ordering::SeqCst))
    }

    fn wait_for_change(&self, seen: u32, at_most: Duration) {
        match self.opened().and_then(|opened| opened.shared.page()) {
            Ok(page) if page.is_shared() => {
                page::sleep_on(page.changes_word(), seen, at_most);
            }
            // Changes of other processes are not seen there.
            Ok(page) => {
                page::sleep_on(page.changes_word(), seen, at_most.min(BLIND_SLICE));
            }
            // Whoever waits looks again and meets the error there.
            Err(_) => thread::sleep(at_most.min(BLIND_SLICE)),
        }
    }

    fn announce(&self) {
        if let Ok(page) = self.opened().and_then(|opened| opened.shared.page()) {
            page::wake(page.changes_word(), i32::MAX);
        }
    }

    fn stats(&self) -> Result<StorageStats, StorageError> {
        let opened = self.opened()?;
        let head = view::View::begin(&opened)?.head()?;
        let txn = opened.begin_read()?;
        let segments = opened.count_segments(&txn)? as u64;
        let mut rows = [0; 6];
        for (count, db) in rows.iter_mut().zip(&opened.tables) {
            *count = db.len(&txn).map_err(|e| opened.fault("count rows", &e))?;
        }
        // The format record and the segment directory are this module's.
        rows[Table::Meta.index()] = rows[Table::Meta.index()].saturating_sub(1 + segments);
        let info = opened.info();
        let slots = info.maximum_number_of_readers;
        // Ended first, so that it does not count itself.
        drop(txn);
        let readers = readers::list(opened.lock_file(), slots, info.last_txn_id as u64)?;
        let used_bytes = opened.used_bytes();
        let file_bytes = match &opened.reserve {
            Some(reserve) => reserve.file_bytes()?,
            None => used_bytes,
        };
        Ok(StorageStats {
            head,
            segments,
            rows,
            file_bytes,
            used_bytes,
            reserve_bytes: file_bytes.saturating_sub(used_bytes),
            map_size_bytes: self.format.map_size_bytes,
            reserve_is_sure: opened.reserve.is_some() && opened.overwrites_in_place,
            readers: readers.count,
            max_readers: slots,
            oldest_reader: readers.oldest,
        })
    }

    fn format(&self) -> FormatRecord {
        self.format.clone()
    }

    fn reserve_ok(&self) -> Result<(), StorageError> {
        let opened = self.opened()?;
        opened.reserve.as_ref().map_or(Ok(()), reserve::Reserve::ok)
    }

    fn backup(&self, to: &Path, marks: &[(&[u8], &[u8])]) -> Result<(), StorageError> {
        // LMDB's copy takes the writer lock for a moment, so a thread with a batch would wait for
        // itself and everybody for a stopped process; and a second open of the copy's directory
        // must not happen meanwhile.
        let _turn = self.turn_and_gate(WRITE_PATIENCE)?;
        let opened = self.opened()?;
        let _entries = registry::lock()?;
        create::copy(&opened, to, marks)
    }

    fn process_has_open(&self, pid: u32) -> Result<bool, StorageError> {
        self.opened()?.owner.has_open(pid)
    }

    fn hold(&self, seq: u64) -> Result<(), StorageError> {
        self.opened()?.owner.hold(seq)
    }

    fn let_go(&self, seq: u64) -> Result<(), StorageError> {
        self.opened()?.owner.let_go(seq)
    }

    fn is_held_elsewhere(&self, seq: u64) -> Result<bool, StorageError> {
        self.opened()?.owner.is_held_elsewhere(seq)
    }

    fn reopen(&self) -> Result<(), StorageError> {
        self.check_process()?;
        let _turn = self.turn.take(WRITE_PATIENCE)?;
        let mut state = self.state.lock();
        let mut seen = 0;
        if let Some(mut opened) = state.take() {
            seen = opened.seen();
            let began = Instant::now();
            loop {
                match Arc::try_unwrap(opened) {
                    Ok(alone) => break drop(alone),
                    Err(shared) if began.elapsed() < REOPEN_PATIENCE => opened = shared,
                    Err(shared) => {
                        *state = Some(shared);
                        let waited = began.elapsed().as_millis();
                        return Err(StorageError::StoreBusy {
                            pid: self.pid,
                            held_for_ms: u64::try_from(waited).unwrap_or(u64::MAX),
                            elsewhere: false,
                        });
                    }
                }
                thread::sleep(Duration::from_millis(1));
            }
        }
        let opened = Opened::open(&self.dir, &self.options)?;
        if opened.data_id() != self.id || opened.format.store_id != self.format.store_id {
            return Err(StorageError::HistoryRewound { seen, found: None });
        }
        // A commit that failed may be there or not, but what was seen before it must be.
        let opened = Arc::new(opened);
        let head = view::View::begin(&opened)?.head()?;
        opened.note_head(seen, head)?;
        *state = Some(opened);
        Ok(())
    }
}

impl Drop for LmdbStorage {
    fn drop(&mut self) {
        if process::id() != self.pid {
            return;
        }
        // Closing happens under the registry's lock, so that nobody opens the file meanwhile. If
        // the lock cannot be had, the entry stays and the file counts as open.
        let Ok(mut entries) = registry::lock() else { return };
        self.state.lock().take();
        entries.remove(&self.id);
    }
}

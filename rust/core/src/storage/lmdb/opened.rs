//! The open files: environment, tables, log segments, owner file, reserve.

use std::fs::File;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use heed::types::Bytes;
use heed::{
    CommitOrAbort, CommitToken, Database, DatabaseOpener, Env, EnvFlags, EnvOpenOptions, MdbError,
    OnCommit, RoTxn, WithoutTls,
};

use super::files::{DATA_FILE, FileId, LOCK_FILE};
use super::format::{self, FORMAT_KEY};
use super::gate::Gate;
use super::meta_page::{self, DATA_VERSION, MetaPage};
use super::owner::OwnerFile;
use super::page::process_namespace;
use super::reserve::Reserve;
use super::shared::SharedPage;
use super::{fault, files, readers, segment};
use crate::storage::{FormatRecord, StorageError, StorageOptions, Table};

pub(super) type Db = Database<'static, Bytes, Bytes>;
pub(super) type LmdbEnv = Env<WithoutTls>;

/// How many new segments a process can see between two opens: at least 64 GiB of records, or 256
/// million small ones. A read transaction clears 49 bytes for each handle that there may be, so this is
/// not simply a very large number.
const SPARE_SEGMENTS: usize = 1024;

/// More tables than any store can have: at full segments, 64 TiB.
const MAX_TABLES: usize = 1 << 20;

/// How often a read transaction that a commit has passed is begun anew.
const READ_TRIES: u32 = 1_000;

/// One segment of the log.
#[derive(Clone, Copy)]
pub(super) struct Segment {
    /// Number of its first record.
    pub(super) first: u64,
    pub(super) db: Db,
}

/// How much the newest segment holds, as of the record `head`.
#[derive(Clone, Copy)]
pub(super) struct Tail {
    pub(super) segment: usize,
    pub(super) head: u64,
    /// Bytes of its records; `None` as long as nobody had to know. Measuring reads the segment.
    pub(super) bytes: Option<u64>,
}

pub(super) struct Opened {
    // Dropped by hand: in a child of `fork` it must be left alone.
    env: ManuallyDrop<LmdbEnv>,
    // Closing any descriptor of the lock file drops this process's locks on it, so this one is
    // closed after the environment, and in a child of `fork` together with it or never.
    lock_file: ManuallyDrop<File>,
    inherited_closed: AtomicBool,
    pub(super) pid: u32,
    pub(super) main: Db,
    pub(super) tables: [Db; 6],
    /// Replaced as a whole, so that a view can keep the list that belongs to its state.
    segments: Mutex<Arc<Vec<Segment>>>,
    /// Held by whoever opens or creates tables: LMDB gives the same handle to two at once.
    handles: Mutex<()>,
    pub(super) tail: Mutex<Option<Tail>>,
    /// The highest head that this process has seen.
    seen: AtomicU64,
    /// Set when a commit failed in a way after which the files must be opened again.
    pub(super) must_reopen: AtomicBool,
    pub(super) format: FormatRecord,
    dir: PathBuf,
    lock_id: FileId,
    data_id: FileId,
    pub(super) overwrites_in_place: bool,
    pub(super) reserve: Option<Reserve>,
    pub(super) owner: OwnerFile,
    pub(super) shared: SharedPage,
    pub(super) gate: Gate,
    /// The namespace that this process's number counts in.
    pub(super) namespace: u64,
}

impl Opened {
    /// Opens a store that exists.
    pub(super) fn open(dir: &Path, options: &StorageOptions) -> Result<Self, StorageError> {
        let data = dir.join(DATA_FILE);
        let meta = meta_page::check(&data)?;
        let data_id = FileId::of(&data)?.ok_or(StorageError::Closed)?;
        let owner = OwnerFile::open(dir)?;
        let flags = if options.read_only { EnvFlags::READ_ONLY } else { EnvFlags::empty() };
        let tables = usize::try_from(meta.tables).unwrap_or(usize::MAX);
        if tables > MAX_TABLES {
            return Err(StorageError::corrupted(format!("the meta page: {tables} tables")));
        }
        let setup = EnvSetup {
            map_size_bytes: meta.map_size_bytes,
            max_readers: options.max_readers,
            max_tables: tables + SPARE_SEGMENTS,
            flags,
        };
        let env = open_env(dir, &setup)?;
        // Before the first read: ended processes may have left no slot free.
        env.clear_stale_readers()
            .map_err(|e| fault::of_step("clear stale readers", meta.map_size_bytes, &e))?;
        let opened = open_tables(&env, meta.map_size_bytes)?;
        let format = opened.format;
        check_format(&format, &meta, options)?;
        let lock_id = FileId::of(&dir.join(LOCK_FILE))?.ok_or_else(lock_file_missing)?;
        let overwrites_in_place = files::overwrites_in_place(dir)?;
        let reserve = if options.read_only {
            None
        } else {
            let reserve = Reserve::open(&data, options.reserve_bytes)?;
            reserve.refill(&owner, meta.needed_bytes(), u32::MAX);
            Some(reserve)
        };
        let shared = SharedPage::open(dir, data_id)?;
        let lock_path = dir.join(LOCK_FILE);
        // The last step that can fail: see the field.
        let lock_file =
            File::open(&lock_path).map_err(|e| files::failed("open", &lock_path, &e))?;
        Ok(Self {
            env: ManuallyDrop::new(env),
            lock_file: ManuallyDrop::new(lock_file),
            inherited_closed: AtomicBool::new(false),
            pid: process::id(),
            main: opened.main,
            tables: opened.tables,
            segments: Mutex::new(Arc::new(opened.segments)),
            handles: Mutex::default(),
            tail: Mutex::default(),
            seen: AtomicU64::new(0),
            must_reopen: AtomicBool::new(false),
            format,
            dir: dir.to_owned(),
            lock_id,
            data_id,
            overwrites_in_place,
            reserve,
            owner,
            shared,
            gate: Gate::default(),
            namespace: process_namespace(),
        })
    }

    /// Refuses to go on in a child of `fork`.
    pub(super) fn check_process(&self) -> Result<(), StorageError> {
        if process::id() == self.pid {
            return Ok(());
        }
        Err(StorageError::Forked { opened_by: self.pid })
    }

    /// The environment, for as long as the caller keeps the `Opened` alive.
    ///
    /// # Safety
    /// Whatever borrows from the answer must be dropped before the `Arc<Opened>` that it came
    /// from.
    pub(super) unsafe fn env(&self) -> &'static LmdbEnv {
        // SAFETY: the environment lives as long as `self`, and the caller keeps that alive.
        unsafe { &*std::ptr::from_ref::<LmdbEnv>(&self.env) }
    }

    pub(super) fn lock_file(&self) -> &File {
        &self.lock_file
    }

    pub(super) fn info(&self) -> heed::EnvInfo {
        self.env.info()
    }

    /// Bytes of the data file that the newest state may use.
    pub(super) fn used_bytes(&self) -> u64 {
        let pages = self.env.info().last_page_number as u64 + 1;
        pages.saturating_mul(u64::from(self.format.page_size_bytes))
    }

    pub(super) fn fault(&self, op: &str, error: &heed::Error) -> StorageError {
        fault::of_step(op, self.format.map_size_bytes, error)
    }

    /// Checks that the files are still those that were opened, and whole.
    pub(super) fn check_files(&self) -> Result<(), StorageError> {
        match FileId::of(&self.dir.join(LOCK_FILE))? {
            Some(id) if id == self.lock_id => {}
            Some(_) => {
                let reason = "another file is in its place".to_owned();
                return Err(StorageError::LockLost { reason });
            }
            None => return Err(lock_file_missing()),
        }
        if FileId::of(&self.dir.join(DATA_FILE))? != Some(self.data_id) {
            let seen = self.seen.load(Ordering::Acquire);
            return Err(StorageError::HistoryRewound { seen, found: None });
        }
        let Some(reserve) = &self.reserve else { return Ok(()) };
        let (have, need) = (reserve.file_bytes()?, self.used_bytes());
        // Rarely the last pages of a state were never written: see `free_pages`.
        if have < need {
            meta_page::check(&self.dir.join(DATA_FILE))?;
        }
        Ok(())
    }

    pub(super) fn data_id(&self) -> FileId {
        self.data_id
    }

    /// The highest head seen so far.
    pub(super) fn seen(&self) -> u64 {
        self.seen.load(Ordering::Acquire)
    }

    /// Remembers a head, and refuses one that lies before what was seen before it was read.
    pub(super) fn note_head(&self, seen: u64, head: u64) -> Result<(), StorageError> {
        if head < seen {
            return Err(StorageError::HistoryRewound { seen, found: Some(head) });
        }
        self.seen.fetch_max(head, Ordering::AcqRel);
        Ok(())
    }

    /// The segments whose handles are open.
    pub(super) fn segments(&self) -> Arc<Vec<Segment>> {
        Arc::clone(&self.segments.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn lock_handles(&self) -> MutexGuard<'_, ()> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds segments whose handles were just opened. The caller holds the lock of the handles.
    pub(super) fn add_segments(&self, _held: &MutexGuard<'_, ()>, new: Vec<Segment>) {
        let mut segments = self.segments.lock().unwrap_or_else(PoisonError::into_inner);
        *segments = Arc::new(segments.iter().copied().chain(new).collect());
    }

    /// How many segments the state of a transaction has.
    pub(super) fn count_segments(&self, txn: &RoTxn) -> Result<usize, StorageError> {
        let stat = self.main.stat(txn).map_err(|e| self.fault("count the tables", &e))?;
        stat.entries
            .checked_sub(Table::ALL.len())
            .filter(|count| *count > 0)
            .ok_or_else(|| StorageError::corrupted("the list of tables: some are missing"))
    }

    /// Opens the handles of segments that other processes have created.
    pub(super) fn adopt_segments(&self) -> Result<(), StorageError> {
        let held = self.lock_handles();
        let known = self.segments().len();
        let txn = self.begin_read()?;
        if self.count_segments(&txn)? <= known {
            return Ok(());
        }
        let meta = self.tables[Table::Meta.index()];
        let wanted = segment::directory(&meta, &txn, known as u64)
            .map_err(|e| self.fault("read the segment directory", &e))?;
        // SAFETY: the answer holds handles only, which are plain numbers.
        let env = unsafe { self.env() };
        let answer = env.open_databases_and_commit(txn, |opener, txn| {
            open_segments(opener, txn, &wanted).map(CommitOrAbort::<Handles<'_>, ()>::Commit)
        });
        let opened = answer.map_err(|e| self.fault("open a log segment", &e))?;
        let new = opened.commit().ok_or(StorageError::Closed)?;
        self.add_segments(&held, new);
        Ok(())
    }

    /// Begins a read transaction.
    ///
    /// LMDB looks up the number of the newest state first and copies its meta page afterwards. There
    /// are two such pages. If a commit ends in between and the next one begins to write its own (the
    /// thread may be left out by the scheduler), the copy is of a state that need not be durable yet,
    /// or torn, and the next transaction would show an older one. No commit touches the page of the
    /// newest state, so a transaction is good if its state is still the newest once it has begun.
    ///
    /// # Errors
    /// [`StorageError::Io`] if commits passed every one of many transactions, which takes a commit in
    /// each of as many microseconds.
    pub(super) fn begin_read(&self) -> Result<RoTxn<'_, WithoutTls>, StorageError> {
        for _ in 0..READ_TRIES {
            let txn = self.begin_read_once()?;
            // What was copied above must have been copied before this is read.
            fence(Ordering::Acquire);
            if readers::is_newest(&self.lock_file, txn.id() as u64)? {
                return Ok(txn);
            }
        }
        Err(StorageError::Io {
            op: "begin a read transaction".to_owned(),
            source: format!(
                "commits of other processes passed it {READ_TRIES} times; try again, and if it \
                 stays so, stop who writes in a loop"
            ),
        })
    }

    /// If the reader table is full, slots of ended processes are cleared and it is tried once more.
    fn begin_read_once(&self) -> Result<RoTxn<'_, WithoutTls>, StorageError> {
        let mut answer = self.env.read_txn();
        if matches!(answer, Err(heed::Error::Mdb(MdbError::ReadersFull))) {
            self.env.clear_stale_readers().map_err(|e| self.fault("clear stale readers", &e))?;
            answer = self.env.read_txn();
        }
        answer.map_err(|e| self.fault("begin a read transaction", &e))
    }

    /// Closes, in a child of `fork`, the environment that came from the parent, so that the child
    /// can open the store anew. LMDB's close frees memory, unmaps and closes descriptors; reader
    /// slots and locks are the parent's, by its process number, and stay.
    pub(super) fn close_inherited(&self) {
        if process::id() == self.pid || self.inherited_closed.swap(true, Ordering::AcqRel) {
            return;
        }
        // SAFETY: the flag makes this happen once, and the check of the process number in each
        // method and each drop keeps the child from using the environment.
        drop(unsafe { std::ptr::read(&raw const *self.env) });
        // SAFETY: as above.
        drop(unsafe { std::ptr::read(&raw const *self.lock_file) });
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if process::id() == self.pid {
            // SAFETY: this is the only drop in the process that opened the environment.
            unsafe { ManuallyDrop::drop(&mut self.env) };
            // SAFETY: as above.
            unsafe { ManuallyDrop::drop(&mut self.lock_file) };
        }
    }
}

fn lock_file_missing() -> StorageError {
    StorageError::LockLost { reason: "it is gone".to_owned() }
}

/// What LMDB is told when it opens an environment.
pub(super) struct EnvSetup {
    pub(super) map_size_bytes: u64,
    pub(super) max_readers: u32,
    pub(super) max_tables: usize,
    pub(super) flags: EnvFlags,
}

pub(super) fn open_env(dir: &Path, setup: &EnvSetup) -> Result<LmdbEnv, StorageError> {
    let impossible = |option, given: u64| StorageError::Options {
        option,
        reason: format!("{given} is more than this machine can address"),
    };
    let map_size = usize::try_from(setup.map_size_bytes)
        .map_err(|_| impossible("map_size", setup.map_size_bytes))?;
    let max_tables = u32::try_from(setup.max_tables)
        .map_err(|_| impossible("segments", setup.max_tables as u64))?;
    let mut builder = EnvOpenOptions::new().read_txn_without_tls();
    builder.map_size(map_size).max_readers(setup.max_readers).max_dbs(max_tables);
    // SAFETY: the only flag ever given is the one for reading; every one that trades durability
    // or locks for speed is left out. The files are ours alone: the registry keeps this process
    // from opening them twice, and the checks above have seen that they are whole.
    let answer = unsafe {
        builder.flags(setup.flags);
        builder.open(dir)
    };
    answer.map_err(|e| fault::of_step(&format!("open {}", dir.display()), setup.map_size_bytes, &e))
}

struct OpenedTables {
    main: Db,
    tables: [Db; 6],
    segments: Vec<Segment>,
    format: FormatRecord,
}

fn open_tables(env: &LmdbEnv, map_size_bytes: u64) -> Result<OpenedTables, StorageError> {
    let fail = |e: &heed::Error| fault::of_step("open the tables", map_size_bytes, e);
    let txn = env.read_txn().map_err(|e| fail(&e))?;
    let mut found = None;
    let answer = env.open_databases_and_commit(txn, |opener, txn| {
        let mut tables = Vec::new();
        for name in [None].into_iter().chain(Table::ALL.map(|table| Some(table.name()))) {
            tables.push((0, open_table(opener, txn, name)?));
        }
        let meta = tables[1 + Table::Meta.index()].1;
        found = meta.get(txn, FORMAT_KEY)?.map(<[u8]>::to_vec);
        let wanted = segment::directory(&meta, txn, 0)?;
        let segments = open_segments(opener, txn, &wanted)?;
        tables.extend(segments.0);
        Ok::<_, heed::Error>(CommitOrAbort::<Handles<'_>, ()>::Commit(Handles(tables)))
    });
    // A name that is missing means that these are somebody else's tables.
    let opened = match answer {
        Err(heed::Error::Mdb(MdbError::NotFound)) => None,
        other => other.map_err(|e| fail(&e))?.commit(),
    };
    let (Some(mut opened), Some(found)) = (opened, found) else {
        let reason = "an LMDB file, and no store of this library".to_owned();
        return Err(StorageError::Format { reason });
    };
    let segments = opened.split_off(1 + Table::ALL.len());
    if segments.is_empty() {
        return Err(StorageError::corrupted("the segment directory: it is empty"));
    }
    Ok(OpenedTables {
        main: opened[0].db,
        tables: std::array::from_fn(|i| opened[i + 1].db),
        segments,
        format: format::decode(&found)?,
    })
}

/// Handles on their way out of the transaction that opened them, each with the first number.
pub(super) struct Handles<'e>(pub(super) Vec<(u64, Database<'e, Bytes, Bytes>)>);

impl OnCommit for Handles<'_> {
    type Committed = Vec<Segment>;

    fn on_commit(self, token: &CommitToken) -> Vec<Segment> {
        let handles = self.0.into_iter();
        handles.map(|(first, db)| Segment { first, db: db.on_commit(token) }).collect()
    }
}

fn open_segments<'e>(
    opener: &DatabaseOpener<'e, WithoutTls>,
    txn: &RoTxn<'e, WithoutTls>,
    wanted: &[(u64, u64)],
) -> Result<Handles<'e>, heed::Error> {
    let mut handles = Vec::new();
    for (index, first) in wanted {
        handles.push((*first, open_table(opener, txn, Some(&segment::table_name(*index)))?));
    }
    Ok(Handles(handles))
}

fn open_table<'e>(
    opener: &DatabaseOpener<'e, WithoutTls>,
    txn: &RoTxn<'e, WithoutTls>,
    name: Option<&str>,
) -> Result<Database<'e, Bytes, Bytes>, heed::Error> {
    opener.open_database(txn, name)?.ok_or(heed::Error::Mdb(MdbError::NotFound))
}

/// Refuses a store that this program, or these options, may not use.
fn check_format(
    format: &FormatRecord,
    meta: &MetaPage,
    options: &StorageOptions,
) -> Result<(), StorageError> {
    format::check(format, options.read_only)?;
    // The record repeats what LMDB's pages say; a difference means damage or a foreign hand.
    let same = format.page_size_bytes == meta.page_size_bytes
        && format.map_size_bytes == meta.map_size_bytes
        && format.lmdb_data_version == DATA_VERSION
        && format.little_endian == cfg!(target_endian = "little");
    if !same {
        let reason = "the format record and the data file disagree on page size, map size, byte \
                      order or LMDB's version";
        return Err(StorageError::Format { reason: reason.to_owned() });
    }
    match options.map_size_bytes {
        Some(wanted) if wanted != format.map_size_bytes => Err(StorageError::Options {
            option: "map_size",
            reason: format!(
                "the store was created with {} bytes and {wanted} were given; leave it out, or \
                 export the store into a new one",
                format.map_size_bytes
            ),
        }),
        _ => Ok(()),
    }
}

/// The system's page size in bytes; LMDB takes it for a new file, up to a limit of its own.
pub(super) fn page_size_bytes() -> u32 {
    // SAFETY: the call has no preconditions.
    let found = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u32::try_from(found).unwrap_or(4096).min(32768)
}

/// Where the store's directory really lies.
pub(super) fn real_path(dir: &Path) -> Result<PathBuf, StorageError> {
    dir.canonicalize().map_err(|e| files::failed("look up", dir, &e))
}

//! Making a store: LMDB's very first write is the one that a crash can tear, so it happens in a
//! scratch directory, and only a whole and flushed file is given its place.
//!
//! The scratch directory lies inside the store's own: that is surely the same file system, and a
//! rename within it needs no right on the parent. Whoever creates locks the directory, so every
//! scratch directory found under that lock was left by a crash and is removed.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use heed::types::Bytes;
use heed::{CommitOrAbort, CompactionOption, Database, EnvFlags};

use super::fault;
use super::files::{
    DATA_FILE, DIRECTORY_MODE, FILE_MODE, LOCK_FILE, OWNER_FILE, PAGE_FILE, PAGE_SCRATCH_PREFIX,
    SCRATCH_PREFIX, failed, parent_of, random_id, sync_directory,
};
use super::format::{self, FORMAT_KEY, FORMAT_VERSION};
use super::meta_page::DATA_VERSION;
use super::opened::{EnvSetup, Opened, open_env, page_size_bytes};
use super::segment;
use crate::storage::{FormatRecord, StorageError, StorageOptions, Table, is_own_key};

/// How long a creator waits for another one.
const PATIENCE: Duration = Duration::from_secs(10);
/// Tables of a copy that is opened only to be marked.
const TABLES_OF_COPY: usize = 16;

/// Creates a store in `dir`, unless somebody else just did.
pub(super) fn create(dir: &Path, options: &StorageOptions) -> Result<(), StorageError> {
    let map_size_bytes = options.map_size_bytes.unwrap_or(StorageOptions::DEFAULT_MAP_SIZE_BYTES);
    check_creation(map_size_bytes, options)?;
    install(dir, |scratch| {
        let format = FormatRecord {
            version: FORMAT_VERSION,
            min_reader: FORMAT_VERSION,
            min_writer: FORMAT_VERSION,
            lmdb_data_version: DATA_VERSION,
            page_size_bytes: page_size_bytes(),
            little_endian: cfg!(target_endian = "little"),
            map_size_bytes,
            segments: options.segments,
            store_id: random_id()?,
            created_ms: options.created_ms,
        };
        write_first(scratch, &format, options.max_readers)
    })
    .map(|_| ())
}

/// Copies the newest state into `to` and puts `marks` into the copy's meta table.
pub(super) fn copy(
    opened: &Opened,
    to: &Path,
    marks: &[(&[u8], &[u8])],
) -> Result<(), StorageError> {
    for (key, _) in marks {
        crate::storage::check_key(Table::Meta, key)?;
        debug_assert!(!is_own_key(Table::Meta, key));
    }
    let installed = install(to, |scratch| {
        let path = scratch.join(DATA_FILE);
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(FILE_MODE)
            .open(&path)
            .map_err(|e| failed("create", &path, &e))?;
        // SAFETY: the copy is made in here, while the caller holds the `Opened`.
        let env = unsafe { opened.env() };
        env.copy_to_file(&mut file, CompactionOption::Disabled)
            .map_err(|e| opened.fault(&format!("copy to {}", path.display()), &e))?;
        drop(file);
        mark(scratch, opened.format.map_size_bytes, marks)
    })?;
    if installed {
        return Ok(());
    }
    let reason = format!("{} holds a store already; name a new directory", to.display());
    Err(StorageError::Options { option: "to", reason })
}

/// Fills a scratch directory and moves its data file into place. `false`: a data file is there.
fn install(
    dir: &Path,
    fill: impl FnOnce(&Path) -> Result<(), StorageError>,
) -> Result<bool, StorageError> {
    let made = make_directory(dir)?;
    let outcome = install_in(dir, fill);
    if made && outcome.is_err() {
        // Only what was made here is taken away again, and only if nobody has put anything into it.
        let _ = fs::remove_dir(dir);
    }
    outcome
}

fn install_in(
    dir: &Path,
    fill: impl FnOnce(&Path) -> Result<(), StorageError>,
) -> Result<bool, StorageError> {
    let _lock = lock_directory(dir)?;
    let data = dir.join(DATA_FILE);
    if data.exists() {
        return Ok(false);
    }
    clear_leftovers(dir)?;
    let scratch = dir.join(format!("{SCRATCH_PREFIX}{}", std::process::id()));
    DirBuilder::new()
        .mode(DIRECTORY_MODE)
        .create(&scratch)
        .map_err(|e| failed("create", &scratch, &e))?;
    let outcome = fill(&scratch).and_then(|()| {
        let filled = scratch.join(DATA_FILE);
        let whole = File::open(&filled).map_err(|e| failed("open", &filled, &e))?;
        whole.sync_all().map_err(|e| failed("flush", &filled, &e))?;
        sync_directory(&scratch)?;
        fs::rename(&filled, &data).map_err(|e| failed("move into place", &filled, &e))?;
        sync_place(dir)
    });
    // Last, since what is left of it tells the next open that the place may not be durable yet.
    let removed = remove_scratch(&scratch);
    outcome.and(removed).map(|()| true)
}

/// Ends the creation of a store whose data file is in place: its creator may have died, or may
/// be at work just now, before the place was durable.
pub(super) fn finish(dir: &Path) -> Result<(), StorageError> {
    if list_directory(dir)?.scratch.is_empty() {
        return Ok(());
    }
    let _lock = lock_directory(dir)?;
    sync_place(dir)?;
    list_directory(dir)?.scratch.iter().try_for_each(|path| remove_scratch(path))
}

/// Makes a store's directory and its entries durable.
fn sync_place(dir: &Path) -> Result<(), StorageError> {
    sync_directory(dir)?;
    sync_directory(parent_of(dir))
}

fn remove_scratch(path: &Path) -> Result<(), StorageError> {
    fs::remove_dir_all(path).map_err(|e| failed("remove", path, &e))
}

/// Makes the store's directory unless it is there; whether it was not. Its parent must exist.
fn make_directory(dir: &Path) -> Result<bool, StorageError> {
    match DirBuilder::new().mode(DIRECTORY_MODE).create(dir) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => Ok(false),
        Err(e) => Err(failed("create", dir, &e)),
    }
}

/// A directory locked against other creators.
struct DirectoryLock(File);

impl Drop for DirectoryLock {
    fn drop(&mut self) {
        // Not left to the close: a child of `fork` may have a copy of the descriptor.
        // SAFETY: the descriptor is open.
        unsafe { libc::flock(self.0.as_raw_fd(), libc::LOCK_UN) };
    }
}

fn lock_directory(dir: &Path) -> Result<DirectoryLock, StorageError> {
    let file = File::open(dir).map_err(|e| failed("open", dir, &e))?;
    let began = Instant::now();
    loop {
        // SAFETY: the descriptor is open.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
            return Ok(DirectoryLock(file));
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::WouldBlock if began.elapsed() < PATIENCE => {
                thread::sleep(Duration::from_millis(2));
            }
            io::ErrorKind::WouldBlock => {
                let held_for_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
                return Err(StorageError::StoreBusy { pid: 0, held_for_ms, elsewhere: false });
            }
            io::ErrorKind::Interrupted => {}
            _ => return Err(failed("lock", dir, &error)),
        }
    }
}

/// What a directory holds.
#[derive(Default)]
struct Listing {
    scratch: Vec<PathBuf>,
    has_lock_file: bool,
    foreign: Option<String>,
}

fn list_directory(dir: &Path) -> Result<Listing, StorageError> {
    let mut listing = Listing::default();
    for entry in fs::read_dir(dir).map_err(|e| failed("list", dir, &e))? {
        let entry = entry.map_err(|e| failed("list", dir, &e))?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(SCRATCH_PREFIX) {
            listing.scratch.push(entry.path());
        } else if name == LOCK_FILE {
            listing.has_lock_file = true;
        } else if !name.starts_with(PAGE_SCRATCH_PREFIX)
            && ![OWNER_FILE, DATA_FILE, PAGE_FILE].contains(&&*name)
        {
            listing.foreign = Some(name.into_owned());
        }
    }
    Ok(listing)
}

/// Removes what crashed creators left, and refuses a directory that holds anything else.
fn clear_leftovers(dir: &Path) -> Result<(), StorageError> {
    let refuse = |reason| Err(StorageError::Options { option: "path", reason });
    let listing = list_directory(dir)?;
    if let Some(name) = listing.foreign {
        return refuse(format!(
            "{} is no store and holds other files ({name}); name a new directory",
            dir.display()
        ));
    }
    if listing.has_lock_file {
        return refuse(format!(
            "{} holds a lock file without its data file; whoever still has the lost file open \
             would meet the new one through it, so close every such process and remove \
             {LOCK_FILE} first",
            dir.display()
        ));
    }
    listing.scratch.iter().try_for_each(|path| remove_scratch(path))
}

fn check_creation(map_size_bytes: u64, options: &StorageOptions) -> Result<(), StorageError> {
    let refuse = |option, reason| Err(StorageError::Options { option, reason });
    let page = u64::from(page_size_bytes());
    if !map_size_bytes.is_multiple_of(page) || map_size_bytes < 64 * page {
        let reason = format!("{map_size_bytes} is no multiple of {page}, or less than 64 of them");
        return refuse("map_size", reason);
    }
    if options.segments.records == 0 || options.segments.bytes == 0 {
        return refuse("segments", "a segment must hold at least one record".to_owned());
    }
    Ok(())
}

/// The first and only commit of a new store: every table, the format record, the first segment.
fn write_first(
    scratch: &Path,
    format: &FormatRecord,
    max_readers: u32,
) -> Result<(), StorageError> {
    let record = format::encode(format)?;
    let setup = EnvSetup {
        map_size_bytes: format.map_size_bytes,
        max_readers,
        max_tables: TABLES_OF_COPY,
        flags: EnvFlags::empty(),
    };
    let env = open_env(scratch, &setup)?;
    let fail = |e: &heed::Error| fault::of_step("create the tables", format.map_size_bytes, e);
    let txn = env.write_txn().map_err(|e| fail(&e))?;
    env.create_databases_and_commit(txn, |opener, txn| {
        for table in Table::ALL {
            let db: Database<'_, Bytes, Bytes> = opener.create_database(txn, Some(table.name()))?;
            if table == Table::Meta {
                db.put(txn, FORMAT_KEY, &record)?;
                db.put(txn, &segment::directory_key(0), &1_u64.to_be_bytes())?;
            }
        }
        opener.create_database::<Bytes, Bytes>(txn, Some(&segment::table_name(0)))?;
        Ok::<_, heed::Error>(CommitOrAbort::<(), ()>::Commit(()))
    })
    .map_err(|e| fail(&e))?;
    drop(env);
    restrict(&scratch.join(DATA_FILE))
}

/// Puts rows into the meta table of a copy that nobody else knows yet.
fn mark(scratch: &Path, map_size_bytes: u64, marks: &[(&[u8], &[u8])]) -> Result<(), StorageError> {
    if marks.is_empty() {
        return Ok(());
    }
    let setup = EnvSetup {
        map_size_bytes,
        max_readers: 8,
        max_tables: TABLES_OF_COPY,
        flags: EnvFlags::empty(),
    };
    let env = open_env(scratch, &setup)?;
    let fail = |e: &heed::Error| fault::of_step("mark the copy", map_size_bytes, e);
    let txn = env.write_txn().map_err(|e| fail(&e))?;
    env.create_databases_and_commit(txn, |opener, txn| {
        let meta: Database<'_, Bytes, Bytes> =
            opener.create_database(txn, Some(Table::Meta.name()))?;
        for (key, value) in marks {
            meta.put(txn, key, value)?;
        }
        Ok::<_, heed::Error>(CommitOrAbort::<(), ()>::Commit(()))
    })
    .map(|_| ())
    .map_err(|e| fail(&e))
}

/// The process's mask may have left a new file fewer rights than its owner needs.
fn restrict(path: &Path) -> Result<(), StorageError> {
    fs::set_permissions(path, fs::Permissions::from_mode(FILE_MODE))
        .map_err(|e| failed("set the mode of", path, &e))
}

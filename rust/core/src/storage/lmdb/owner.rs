//! The owner file: who has the store open.
//!
//! Each process locks the byte of its number with an open-file-description lock. Such a lock
//! conflicts inside a process too, allows other processes, and survives closes of other
//! descriptors of the file; it goes with its process, however that ends.

use std::fs::{File, OpenOptions};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, Ordering};

use super::files::{FILE_MODE, OWNER_FILE, failed};
use crate::storage::StorageError;

/// The byte that a process locks while it extends the data file; beyond every process number.
const EXTEND_BYTE: i64 = 1 << 40;

/// The byte of whoever is in the gate.
const GATE_BYTE: i64 = EXTEND_BYTE + 1;

/// The byte of whoever is the first to wait for it.
const FIRST_BYTE: i64 = EXTEND_BYTE + 2;

/// The byte of record 0. A process locks the byte of a record that says that it is at work.
const WORK_BYTES: i64 = 1 << 41;

/// Descriptors that a child of `fork` must close: as long as it kept one, the parent would seem
/// alive after its end. Stores beyond this number have that flaw.
static OWNED: [AtomicI32; 64] = [const { AtomicI32::new(-1) }; 64];
static AT_FORK: Once = Once::new();

pub(super) struct OwnerFile {
    // In a child of `fork` the descriptor is closed already and its number may be another file's.
    file: ManuallyDrop<File>,
    slot: Option<usize>,
    pid: u32,
}

impl OwnerFile {
    /// Opens the file, creating it if needed, and locks this process's byte.
    pub(super) fn open(dir: &Path) -> Result<Self, StorageError> {
        let path = dir.join(OWNER_FILE);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(FILE_MODE)
            .open(&path)
            .map_err(|e| failed("open", &path, &e))?;
        let pid = process::id();
        if !lock(&file, libc::F_WRLCK, i64::from(pid)).map_err(|e| failed("lock", &path, &e))? {
            return Err(StorageError::Io {
                op: format!("lock {}", path.display()),
                source: format!(
                    "process number {pid} has the store open already. Either this process has a \
                     second copy of this library, or two containers share the directory but count \
                     their processes apart, and both have a number {pid}: start them in one process \
                     namespace (docker run --pid, shareProcessNamespace), or so that their numbers \
                     differ"
                ),
            });
        }
        AT_FORK.call_once(|| {
            // SAFETY: the handler only closes descriptors, which is allowed in a forked child.
            unsafe { libc::pthread_atfork(None, None, Some(close_owned)) };
        });
        let fd = file.as_raw_fd();
        let slot = OWNED.iter().position(|slot| {
            slot.compare_exchange(-1, fd, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        });
        Ok(Self { file: ManuallyDrop::new(file), slot, pid })
    }

    /// Whether a process has the store open.
    pub(super) fn has_open(&self, pid: u32) -> Result<bool, StorageError> {
        if pid == self.pid {
            return Ok(true);
        }
        let mut range = byte(libc::F_WRLCK, i64::from(pid));
        command(&self.file, libc::F_OFD_GETLK, &mut range)
            .map_err(|e| StorageError::io("look up who has the store open", &e))?;
        Ok(i32::from(range.l_type) != libc::F_UNLCK)
    }

    /// Locks the byte of a record; nothing happens if this process has it already.
    pub(super) fn hold(&self, seq: u64) -> Result<(), StorageError> {
        // Somebody else's lock on it is left from a batch that was lost, and goes with its process.
        lock(&self.file, libc::F_WRLCK, work_byte(seq))
            .map(|_| ())
            .map_err(|e| StorageError::io("mark a claim in the owner file", &e))
    }

    /// Unlocks the byte of a record.
    pub(super) fn let_go(&self, seq: u64) -> Result<(), StorageError> {
        lock(&self.file, libc::F_UNLCK, work_byte(seq))
            .map(|_| ())
            .map_err(|e| StorageError::io("unmark a claim in the owner file", &e))
    }

    /// Whether another process has locked the byte of a record.
    pub(super) fn is_held_elsewhere(&self, seq: u64) -> Result<bool, StorageError> {
        let mut range = byte(libc::F_WRLCK, work_byte(seq));
        command(&self.file, libc::F_OFD_GETLK, &mut range)
            .map_err(|e| StorageError::io("look up who is at a claim", &e))?;
        Ok(i32::from(range.l_type) != libc::F_UNLCK)
    }

    /// Goes into the gate, if no other process is in it.
    pub(super) fn try_gate(&self) -> Result<bool, StorageError> {
        lock(&self.file, libc::F_WRLCK, GATE_BYTE)
            .map_err(|e| StorageError::io("lock the gate in the owner file", &e))
    }

    /// Leaves the gate.
    pub(super) fn leave_gate(&self) {
        // An unlock cannot fail on a file that is open.
        let _ = lock(&self.file, libc::F_UNLCK, GATE_BYTE);
    }

    /// Becomes the first of those who wait for the gate, if no other process is.
    pub(super) fn try_first(&self) -> Result<bool, StorageError> {
        lock(&self.file, libc::F_WRLCK, FIRST_BYTE)
            .map_err(|e| StorageError::io("lock the queue in the owner file", &e))
    }

    /// Is the first no more.
    pub(super) fn leave_first(&self) {
        let _ = lock(&self.file, libc::F_UNLCK, FIRST_BYTE);
    }

    /// Takes the right to extend the data file, if no other process has it.
    pub(super) fn try_extend(&self) -> io::Result<Option<ExtendGuard<'_>>> {
        Ok(lock(&self.file, libc::F_WRLCK, EXTEND_BYTE)?.then_some(ExtendGuard(self)))
    }
}

impl Drop for OwnerFile {
    fn drop(&mut self) {
        if process::id() != self.pid {
            return;
        }
        if let Some(slot) = self.slot {
            OWNED[slot].store(-1, Ordering::Release);
        }
        // Not left to the close: a child that is about to execute another program has a copy of the
        // descriptor for a moment.
        let _ = lock(&self.file, libc::F_UNLCK, i64::from(self.pid));
        // SAFETY: this is the only place that drops the file, and nothing uses it afterwards.
        unsafe { ManuallyDrop::drop(&mut self.file) };
    }
}

pub(super) struct ExtendGuard<'o>(&'o OwnerFile);

impl Drop for ExtendGuard<'_> {
    fn drop(&mut self) {
        // An unlock cannot fail on a file that is open; if it did, only the reserve would suffer.
        let _ = lock(&self.0.file, libc::F_UNLCK, EXTEND_BYTE);
    }
}

extern "C" fn close_owned() {
    for slot in &OWNED {
        let fd = slot.swap(-1, Ordering::AcqRel);
        if fd >= 0 {
            // SAFETY: the descriptor was this module's in the parent; the child's copy of the
            // owner never touches it again.
            unsafe { libc::close(fd) };
        }
    }
}

fn work_byte(seq: u64) -> i64 {
    WORK_BYTES.saturating_add_unsigned(seq).min(i64::MAX - 1)
}

/// Sets or clears a lock on one byte; `false` if somebody else has it.
fn lock(file: &File, kind: i32, at: i64) -> io::Result<bool> {
    let mut range = byte(kind, at);
    match command(file, libc::F_OFD_SETLK, &mut range) {
        Ok(()) => Ok(true),
        Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        Err(e) => Err(e),
    }
}

fn byte(kind: i32, at: i64) -> libc::flock {
    // SAFETY: the structure consists of integers, for which zero is a value.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    // The kernel's lock kinds are 0 to 2.
    #[allow(clippy::cast_possible_truncation)]
    {
        range.l_type = kind as libc::c_short;
        range.l_whence = libc::SEEK_SET as libc::c_short;
    }
    range.l_start = at;
    range.l_len = 1;
    range
}

fn command(file: &File, command: i32, range: &mut libc::flock) -> io::Result<()> {
    loop {
        // SAFETY: the descriptor is open and the structure is what this command takes.
        if unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut *range) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

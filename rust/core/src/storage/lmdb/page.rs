//! The shared page: who is at the gate, how far the log is durable, and words to sleep on.
//!
//! Invariants:
//! - The page is a hint. Locks of the kernel keep writers apart and the log says what happened, so a
//!   page that is gone, torn or full of garbage costs time and nothing else: every sleep is bounded.
//! - A page that somebody may have mapped is never made shorter and never written anew as a whole; a
//!   bad one is replaced under its name, and who still has the old one finds the new one by the name.
//!
//! Layout (FORMAT.md, section 8): words in the machine's byte order, each written by itself.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::super::machine::boot_id;
use super::files::{FILE_MODE, FileId, PAGE_FILE, PAGE_SCRATCH_PREFIX};

pub(super) const PAGE_BYTES: usize = 4096;
const MAGIC: [u8; 8] = *b"effpage\0";
const PAGE_VERSION: u32 = 1;
/// Magic, version, a gap, the boot's id, device and inode of the data file.
const HEADER_BYTES: usize = 48;

const HOLDER: usize = 64;
const WAITERS: usize = 68;
const SINCE_MS: usize = 72;
const NAMESPACE: usize = 80;
const GATE_WORD: usize = 88;
const QUEUE_WORD: usize = 92;
const HEAD: usize = 128;
const CHANGES_WORD: usize = 136;

/// A mapped page. Where the file cannot be had, it is a page of this process alone.
pub(super) struct Page {
    at: NonNull<libc::c_void>,
    /// `None`: this process's own.
    file: Option<FileId>,
}

// SAFETY: the mapping lives as long as the value, and all that is in it is read and written by
// atomic operations.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `map` and nothing refers to it any more.
        unsafe { libc::munmap(self.at.as_ptr(), PAGE_BYTES) };
    }
}

impl Page {
    /// The page of a store, made if it is missing and replaced if it is another boot's, another data
    /// file's or nobody's. Where that cannot be done, a page of this process alone: it fails only
    /// for want of memory.
    pub(super) fn open(dir: &Path, data: FileId) -> io::Result<Arc<Self>> {
        let header = header_of(data);
        let path = dir.join(PAGE_FILE);
        // Somebody else may make or replace it at the same time; one of them will be found.
        for _ in 0..4 {
            match open_page(&path, &header) {
                Ok(Found::Page(page)) => return Ok(Arc::new(page)),
                Ok(found @ (Found::Nothing | Found::Other)) => {
                    let replace = matches!(found, Found::Other);
                    if place(dir, &path, &header, replace).is_err() {
                        break;
                    }
                }
                Ok(Found::Newer) | Err(_) => break,
            }
        }
        map(None).map(|at| Arc::new(Self { at, file: None }))
    }

    /// Whether this is still the page that stands under its name, in its whole length.
    pub(super) fn is_current(&self, dir: &Path) -> bool {
        let Some(mine) = self.file else { return false };
        fs::metadata(dir.join(PAGE_FILE)).is_ok_and(|found| {
            FileId::of_metadata(&found) == mine && found.len() >= PAGE_BYTES as u64
        })
    }

    /// Whether other processes see it.
    pub(super) fn is_shared(&self) -> bool {
        self.file.is_some()
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        debug_assert!(at.is_multiple_of(4) && at + 4 <= PAGE_BYTES);
        // SAFETY: the place lies in the mapping, which outlives the value.
        let place: *mut u32 = unsafe { self.at.byte_add(at) }.cast().as_ptr();
        // SAFETY: a mapping begins with a page and the place is a multiple of the word's size in
        // it; every process uses it by atomic operations only.
        unsafe { AtomicU32::from_ptr(place) }
    }

    fn number(&self, at: usize) -> &AtomicU64 {
        debug_assert!(at.is_multiple_of(8) && at + 8 <= PAGE_BYTES);
        // SAFETY: as above.
        let place: *mut u64 = unsafe { self.at.byte_add(at) }.cast().as_ptr();
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(place) }
    }

    /// The process that is in the gate, by its own count of processes; 0 for none.
    pub(super) fn holder(&self) -> &AtomicU32 {
        self.word(HOLDER)
    }

    /// How many processes wait at the gate, about.
    pub(super) fn waiters(&self) -> &AtomicU32 {
        self.word(WAITERS)
    }

    /// Since when the holder is in the gate, in milliseconds of the boot-time clock.
    pub(super) fn since_ms(&self) -> &AtomicU64 {
        self.number(SINCE_MS)
    }

    /// The namespace that the holder's number counts in.
    pub(super) fn namespace(&self) -> &AtomicU64 {
        self.number(NAMESPACE)
    }

    /// Counts releases of the gate; the first in the queue sleeps on it.
    pub(super) fn gate_word(&self) -> &AtomicU32 {
        self.word(GATE_WORD)
    }

    /// Counts changes at the queue's head; the others sleep on it.
    pub(super) fn queue_word(&self) -> &AtomicU32 {
        self.word(QUEUE_WORD)
    }

    /// The durable head, as the last writer said.
    pub(super) fn head(&self) -> &AtomicU64 {
        self.number(HEAD)
    }

    /// Counts durable batches; whoever waits for a change sleeps on it.
    pub(super) fn changes_word(&self) -> &AtomicU32 {
        self.word(CHANGES_WORD)
    }
}

/// Sleeps until `word` is woken, unless it is not `seen` any more; `false` when the time passed.
pub(super) fn sleep_on(word: &AtomicU32, seen: u32, at_most: Duration) -> bool {
    let timeout = libc::timespec {
        tv_sec: libc::time_t::try_from(at_most.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(at_most.subsec_nanos().cast_signed()),
    };
    // SAFETY: the word and the time outlive the call, which only reads them.
    let answer = unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, seen, &raw const timeout)
    };
    answer == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ETIMEDOUT)
}

/// Counts a word up and wakes at most so many who sleep on it.
pub(super) fn wake(word: &AtomicU32, at_most: i32) {
    word.fetch_add(1, Ordering::SeqCst);
    // SAFETY: the call only takes the word's address.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, at_most) };
}

/// The namespace that this process's number counts in; 0 if the system does not say.
pub(super) fn process_namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |found| found.ino())
}

fn header_of(data: FileId) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&PAGE_VERSION.to_ne_bytes());
    header[16..32].copy_from_slice(&boot_id());
    let (device, inode) = data.numbers();
    header[32..40].copy_from_slice(&device.to_ne_bytes());
    header[40..].copy_from_slice(&inode.to_ne_bytes());
    header
}

enum Found {
    Page(Page),
    /// Of a version that this program does not know: left to those who do.
    Newer,
    Nothing,
    /// Of another boot or another data file, or garbage.
    Other,
}

fn open_page(path: &Path, header: &[u8; HEADER_BYTES]) -> io::Result<Found> {
    let opened =
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(error) => return Err(error),
    };
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let mut there = [0; HEADER_BYTES];
    if found.len() < PAGE_BYTES as u64 || file.read_exact_at(&mut there, 0).is_err() {
        return Ok(Found::Other);
    }
    if there == *header {
        let at = map(Some(&file))?;
        return Ok(Found::Page(Page { at, file: Some(FileId::of_metadata(&found)) }));
    }
    let version = u32::from_ne_bytes(std::array::from_fn(|place| there[8 + place]));
    let newer = there[..8] == MAGIC && version > PAGE_VERSION && there[16..] == header[16..];
    Ok(if newer { Found::Newer } else { Found::Other })
}

/// Puts a whole new page under its name; unless `replace`, only where there is none.
fn place(dir: &Path, path: &Path, header: &[u8], replace: bool) -> io::Result<()> {
    let mut bytes = [0; PAGE_BYTES];
    bytes[..HEADER_BYTES].copy_from_slice(header);
    let mut nameless = OpenOptions::new();
    nameless.write(true).mode(FILE_MODE).custom_flags(libc::O_TMPFILE);
    let linked = if let Ok(mut file) = nameless.open(dir) {
        file.write_all(&bytes)?;
        take_away(path, replace)?;
        give_name(&file, path)
    } else {
        // Not every file system has files without a name.
        let scratch = dir.join(format!("{PAGE_SCRATCH_PREFIX}{}", process::id()));
        // A process of this number that was killed may have left one.
        take_away(&scratch, true)?;
        let mut named = OpenOptions::new();
        let mut file = named.write(true).create_new(true).mode(FILE_MODE).open(&scratch)?;
        file.write_all(&bytes)?;
        take_away(path, replace)?;
        let linked = fs::hard_link(&scratch, path);
        fs::remove_file(&scratch)?;
        linked
    };
    match linked {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

fn take_away(path: &Path, wanted: bool) -> io::Result<()> {
    match if wanted { fs::remove_file(path) } else { Ok(()) } {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn give_name(file: &File, path: &Path) -> io::Result<()> {
    let from = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    let to = CString::new(path.as_os_str().as_bytes())?;
    let (here, follow) = (libc::AT_FDCWD, libc::AT_SYMLINK_FOLLOW);
    // SAFETY: both paths end in a zero byte and outlive the call.
    match unsafe { libc::linkat(here, from.as_ptr(), here, to.as_ptr(), follow) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Maps a file's first page, shared; or memory of this process.
fn map(file: Option<&File>) -> io::Result<NonNull<libc::c_void>> {
    let (flags, fd) = match file {
        Some(file) => (libc::MAP_SHARED, file.as_raw_fd()),
        None => (libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1),
    };
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at a place that the kernel chooses.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), PAGE_BYTES, access, flags, fd, 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(at).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))
}

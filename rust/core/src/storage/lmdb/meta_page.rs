//! LMDB's two meta pages, read by hand before anything is mapped: a map over a file that was cut
//! off ends in a signal, which no error can be made of.
//!
//! Layout (LMDB 0.9, 64 bits, numbers in the machine's byte order). Page header: number u64,
//! padding u16, flags u16, bounds 2 x u16. Then the meta data: magic u32, version u32,
//! address u64, map size u64, the table of free pages and the table of tables, last page u64,
//! transaction u64. A table has 48 bytes: padding u32 (the page size, in the first one),
//! flags u16, depth u16, branch, leaf and overflow pages 3 x u64, entries u64, root u64.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::files::failed;
use super::free_pages;
use crate::storage::StorageError;

pub(super) const DATA_VERSION: u32 = 1;

const MAGIC: u32 = 0xBEEF_C0DE;
const META_FLAG: u16 = 0x08;
const HEADER_BYTES: usize = 152;

/// What the newest meta page says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MetaPage {
    pub(super) page_size_bytes: u32,
    pub(super) map_size_bytes: u64,
    /// Named tables.
    pub(super) tables: u64,
    /// Root page of the table of free pages.
    pub(super) free_root: u64,
    pub(super) last_page: u64,
    pub(super) transaction: u64,
}

impl MetaPage {
    /// Bytes of the file that the newest state may use.
    pub(super) fn needed_bytes(&self) -> u64 {
        self.last_page.saturating_add(1).saturating_mul(u64::from(self.page_size_bytes))
    }
}

/// Reads the newest meta page of a data file and checks that the file is as long as it must be.
///
/// # Errors
/// [`StorageError::Format`]: not LMDB's file, or of another version, byte order or word size.
/// [`StorageError::Truncated`]: shorter than its pages need.
pub(super) fn check(path: &Path) -> Result<MetaPage, StorageError> {
    let file = File::open(path).map_err(|e| failed("open", path, &e))?;
    let mut outcome = check_once(&file, path);
    // Another process may be writing a meta page just now; it takes microseconds.
    for _ in 0..3 {
        if outcome.is_ok() {
            break;
        }
        thread::sleep(Duration::from_millis(2));
        outcome = check_once(&file, path);
    }
    outcome
}

fn check_once(file: &File, path: &Path) -> Result<MetaPage, StorageError> {
    let have = file.metadata().map_err(|e| failed("look up", path, &e))?.len();
    let first = read_page(file, path, have, 0)?;
    let second = read_page(file, path, have, u64::from(first.page_size_bytes))?;
    let newest = if second.transaction > first.transaction { second } else { first };
    let need = newest.needed_bytes();
    if have < need && !free_pages::cover_tail(file, &newest, have) {
        return Err(StorageError::Truncated { have, need });
    }
    if newest.map_size_bytes < need {
        let place = format!("the meta page: {need} bytes used of {}", newest.map_size_bytes);
        return Err(StorageError::corrupted(place));
    }
    Ok(newest)
}

fn read_page(file: &File, path: &Path, have: u64, at: u64) -> Result<MetaPage, StorageError> {
    let need = at + HEADER_BYTES as u64;
    if have < need {
        return Err(StorageError::Truncated { have, need });
    }
    let mut bytes = [0; HEADER_BYTES];
    file.read_exact_at(&mut bytes, at).map_err(|e| failed("read", path, &e))?;
    parse(&bytes).map_err(|reason| StorageError::Format {
        reason: format!("{} at byte {at}: {reason}", path.display()),
    })
}

fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<MetaPage, String> {
    let magic = u32_at(bytes, 16);
    if magic == MAGIC.swap_bytes() {
        return Err("written on a machine of the other byte order".to_owned());
    }
    if magic != MAGIC || u16_at(bytes, 10) & META_FLAG == 0 {
        return Err("no meta page of LMDB".to_owned());
    }
    let version = u32_at(bytes, 20);
    if version != DATA_VERSION {
        return Err(format!("LMDB data version {version} instead of {DATA_VERSION}"));
    }
    let page_size_bytes = u32_at(bytes, 40);
    if !page_size_bytes.is_power_of_two() || !(256..=65536).contains(&page_size_bytes) {
        return Err(format!("an impossible page size of {page_size_bytes} bytes"));
    }
    Ok(MetaPage {
        page_size_bytes,
        map_size_bytes: u64_at(bytes, 32),
        tables: u64_at(bytes, 120),
        free_root: u64_at(bytes, 80),
        last_page: u64_at(bytes, 136),
        transaction: u64_at(bytes, 144),
    })
}

fn u16_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u16 {
    u16::from_ne_bytes(array_at(bytes, at))
}

fn u32_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u32 {
    u32::from_ne_bytes(array_at(bytes, at))
}

fn u64_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u64 {
    u64::from_ne_bytes(array_at(bytes, at))
}

fn array_at<const N: usize>(bytes: &[u8; HEADER_BYTES], at: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes[at + i])
}

//! Zeroes written ahead of the data. They spare commits the price of growing the file, and they
//! are the disk reserve that lets old work end on a full disk.
//!
//! LMDB never looks past the last page that its meta page names, so zeroes beyond it are harmless.
//! The file is extended through a descriptor opened for appending only: the kernel then chooses
//! the position at the very moment of the write, so that zeroes can never land on a page that
//! somebody writes at the same time.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use super::files::failed;
use super::owner::OwnerFile;
use crate::storage::StorageError;

const CHUNK_BYTES: usize = 256 << 10;
static ZEROES: [u8; CHUNK_BYTES] = [0; CHUNK_BYTES];

pub(super) struct Reserve {
    file: File,
    target_bytes: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Why the last attempt to extend the file failed.
    failure: Option<String>,
}

impl Reserve {
    pub(super) fn open(data: &Path, target_bytes: u64) -> Result<Self, StorageError> {
        let file =
            OpenOptions::new().append(true).open(data).map_err(|e| failed("open", data, &e))?;
        Ok(Self { file, target_bytes, state: Mutex::default() })
    }

    /// Length of the data file in bytes.
    pub(super) fn file_bytes(&self) -> Result<u64, StorageError> {
        let found = self.file.metadata();
        found.map(|found| found.len()).map_err(|e| StorageError::io("look up the data file", &e))
    }

    /// Appends zeroes until the target lies beyond `used_bytes`, at most `chunks` times. That it
    /// fails is remembered, not returned: the caller's write may still find room.
    pub(super) fn refill(&self, owner: &OwnerFile, used_bytes: u64, chunks: u32) {
        // Whoever extends the file now does it for this thread as well.
        let Ok(mut state) = self.state.try_lock() else { return };
        state.failure = self.extend(owner, used_bytes, chunks).err().map(|e| e.to_string());
    }

    fn extend(&self, owner: &OwnerFile, used_bytes: u64, chunks: u32) -> io::Result<()> {
        let wanted = used_bytes.saturating_add(self.target_bytes);
        if self.file.metadata()?.len() >= wanted {
            return Ok(());
        }
        let Some(_extend) = owner.try_extend()? else { return Ok(()) };
        let mut written = false;
        for _ in 0..chunks {
            if self.file.metadata()?.len() >= wanted {
                break;
            }
            (&self.file).write_all(&ZEROES)?;
            written = true;
        }
        // The new length reaches the disk here and not in somebody's commit.
        if written { self.file.sync_data() } else { Ok(()) }
    }

    /// Whether the last attempt to fill the reserve succeeded.
    pub(super) fn ok(&self) -> Result<(), StorageError> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match &state.failure {
            None => Ok(()),
            Some(text) => Err(StorageError::DiskFull {
                op: format!("refill the reserve of {} bytes: {text}", self.target_bytes),
            }),
        }
    }
}

//! The shared page of an open store, whichever it is now: somebody may remove or replace it.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::files::FileId;
use super::page::{Page, wake};
use crate::storage::StorageError;

pub(super) struct SharedPage {
    dir: PathBuf,
    data: FileId,
    page: Mutex<Arc<Page>>,
}

impl SharedPage {
    pub(super) fn open(dir: &Path, data: FileId) -> Result<Self, StorageError> {
        let page = Page::open(dir, data).map_err(|e| failed(&e))?;
        Ok(Self { dir: dir.to_owned(), data, page: Mutex::new(page) })
    }

    /// The page that is shared now.
    pub(super) fn page(&self) -> Result<Arc<Page>, StorageError> {
        let mut page = self.lock();
        if !page.is_current(&self.dir) {
            let found = Page::open(&self.dir, self.data).map_err(|e| failed(&e))?;
            // Its own page stays this process's as long as there is none to share: its threads
            // sleep on it.
            if found.is_shared() || page.is_shared() {
                *page = found;
            }
        }
        Ok(Arc::clone(&page))
    }

    /// The page that was shared when somebody looked last.
    pub(super) fn known(&self) -> Arc<Page> {
        Arc::clone(&self.lock())
    }

    /// Says how far the log is durable, and wakes who waits for it.
    pub(super) fn announce(&self, head: u64) {
        let page = self.known();
        page.head().store(head, Ordering::SeqCst);
        wake(page.changes_word(), i32::MAX);
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Page>> {
        self.page.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn failed(error: &std::io::Error) -> StorageError {
    StorageError::io("map a page", error)
}

//! Keeping a store: verify, backup, export and import.

use std::path::{Path, PathBuf};

use super::engine::RESTORE_MARK;
use super::{EffectStore, Options};
use crate::error::Error;
use crate::log::{VerifyReport, export, import, verify};
use crate::model::Refusal;
use crate::storage::{LmdbStorage, Storage, StorageError, StorageOptions, Table};

impl EffectStore {
    /// Walks the whole log: numbers, chain, payloads; replays it and compares every table and the
    /// live state. With a head that was kept elsewhere it also finds a cut tail.
    ///
    /// # Errors
    /// [`StorageError::Corrupted`](crate::storage::StorageError::Corrupted) names the first bad
    /// place.
    pub fn verify(&self, from_head: Option<(u64, [u8; 32])>) -> Result<VerifyReport, Error> {
        let view = self.engine().view()?;
        Ok(verify(view.as_ref(), from_head)?)
    }

    /// Copies the store into an empty directory. The copy is marked: its first write starts a new
    /// incarnation, so that no token is ever handed out twice (I9).
    ///
    /// # Errors
    /// Where the copy cannot be written.
    pub fn backup(&self, to: &Path) -> Result<(), Error> {
        self.elsewhere(to)?;
        // The turn to write keeps batches away; the lock over the state must not be held while it is
        // waited for, since whoever has it waits for the state. A later version's store is copied, too.
        match self.engine().lock().map(drop) {
            Ok(()) | Err(Error::Storage(StorageError::Format { .. })) => {}
            Err(error) => return Err(error),
        }
        Ok(self.engine().storage.backup(to, &[(RESTORE_MARK, b"1")])?)
    }

    /// Writes all records into a new file, a CBOR sequence; how many there were.
    ///
    /// # Errors
    /// Where the file exists or cannot be written.
    pub fn export(&self, file: &Path) -> Result<u64, Error> {
        self.elsewhere(file)?;
        let view = self.engine().view()?;
        Ok(export(view.as_ref(), file)?)
    }

    /// Refuses a place inside the store's own directory: nothing but the store belongs there, and what
    /// removes or copies the one would take the other along.
    fn elsewhere(&self, place: &Path) -> Result<(), Error> {
        let Ok(own) = std::fs::canonicalize(self.path()) else { return Ok(()) };
        let there = place.ancestors().find_map(|part| {
            let part = if part.as_os_str().is_empty() { Path::new(".") } else { part };
            std::fs::canonicalize(part).ok()
        });
        if there.is_some_and(|there| there.starts_with(&own)) {
            let reason = format!(
                "{} lies in the store's own directory; name another place",
                place.display()
            );
            return Err(Refusal::Options { option: "path", reason }.into());
        }
        Ok(())
    }

    /// Makes a new store from an export file, beside its place first: a file that does not fit leaves
    /// nothing behind.
    ///
    /// # Errors
    /// [`Refusal::Options`] where something is at the store's place;
    /// [`StorageError::Corrupted`](crate::storage::StorageError::Corrupted) names the first record
    /// that does not fit.
    pub fn import(file: &Path, store: &Path) -> Result<EffectStore, Error> {
        if std::fs::read_dir(store).is_ok_and(|mut entries| entries.next().is_some())
            || store.is_file()
        {
            let reason = "an import needs a directory that is empty or not there".to_owned();
            return Err(Refusal::Options { option: "path", reason }.into());
        }
        let scratch = beside(store)?;
        let filled = fill(file, &scratch).and_then(|()| {
            let moved = std::fs::rename(&scratch, store).and_then(|()| {
                let above = store.parent().filter(|above| !above.as_os_str().is_empty());
                std::fs::File::open(above.unwrap_or(Path::new("."))).and_then(|dir| dir.sync_all())
            });
            moved.map_err(|error| io("move the imported store to its place", &error))
        });
        if let Err(error) = filled {
            // What cannot be removed is in nobody's way: its name is used once.
            let _ = std::fs::remove_dir_all(&scratch);
            return Err(error);
        }
        EffectStore::open(store, Options { create: false, ..Options::default() })
    }
}

fn io(op: &str, error: &std::io::Error) -> Error {
    let source = error.to_string();
    Error::Storage(StorageError::Io { op: op.to_owned(), source })
}

/// A name beside the store's that nobody else uses.
fn beside(store: &Path) -> Result<PathBuf, Error> {
    let mut unique = [0; 8];
    super::entropy(&mut unique)?;
    let mut name = store.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".import-{:016x}", u64::from_ne_bytes(unique)));
    Ok(store.with_file_name(name))
}

fn fill(file: &Path, store: &Path) -> Result<(), Error> {
    let options =
        StorageOptions { created_ms: super::system_now_ms(), ..StorageOptions::default() };
    let storage = LmdbStorage::open(store, &options)?;
    let storage: &dyn Storage = storage.as_ref();
    let mut batch = storage.write()?;
    import(file, batch.as_mut())?;
    // A second store with the same history must not hand out the same tokens.
    batch.put(Table::Meta, RESTORE_MARK, b"1")?;
    Ok(batch.commit()?)
}

//! Keeping a store: verify, backup, export and import.

use std::path::Path;

use super::engine::RESTORE_MARK;
use super::{EffectStore, Options};
use crate::error::Error;
use crate::log::{VerifyReport, export, import, verify};
use crate::model::Refusal;

impl EffectStore {
    /// Walks the whole log: numbers, chain, payloads; replays it and compares every table and the
    /// live state. With a head that was kept elsewhere it also finds a cut tail.
    ///
    /// # Errors
    /// [`StorageError::Corrupted`](crate::storage::StorageError::Corrupted) names the first bad
    /// place.
    pub fn verify(&self, from_head: Option<(u64, [u8; 32])>) -> Result<VerifyReport, Error> {
        let _still = self.engine().lock()?;
        let view = self.engine().view()?;
        Ok(verify(view.as_ref(), from_head)?)
    }

    /// Copies the store into an empty directory. The copy is marked: its first write starts a new
    /// incarnation, so that no token is ever handed out twice (I9).
    ///
    /// # Errors
    /// Where the copy cannot be written.
    pub fn backup(&self, to: &Path) -> Result<(), Error> {
        let _still = self.engine().lock()?;
        Ok(self.engine().storage.backup(to, &[(RESTORE_MARK, b"1")])?)
    }

    /// Writes all records into a new file, a CBOR sequence; how many there were.
    ///
    /// # Errors
    /// Where the file exists or cannot be written.
    pub fn export(&self, file: &Path) -> Result<u64, Error> {
        let view = self.engine().view()?;
        Ok(export(view.as_ref(), file)?)
    }

    /// Makes a new store from an export file.
    ///
    /// # Errors
    /// [`Refusal::Options`] where the store is not empty;
    /// [`StorageError::Corrupted`](crate::storage::StorageError::Corrupted) names the first record
    /// that does not fit, and nothing is stored.
    pub fn import(file: &Path, store: &Path) -> Result<EffectStore, Error> {
        {
            let options = crate::storage::StorageOptions {
                created_ms: super::system_now_ms(),
                ..crate::storage::StorageOptions::default()
            };
            let storage = crate::storage::LmdbStorage::open(store, &options)?;
            let storage: &dyn crate::storage::Storage = storage.as_ref();
            if storage.read()?.head()? > 0 {
                let reason = "an import needs an empty store".to_owned();
                return Err(Refusal::Options { option: "path", reason }.into());
            }
            let mut batch = storage.write()?;
            import(file, batch.as_mut())?;
            // A second store with the same history must not hand out the same tokens.
            batch.put(crate::storage::Table::Meta, RESTORE_MARK, b"1")?;
            batch.commit()?;
        }
        EffectStore::open(store, Options { create: false, ..Options::default() })
    }
}

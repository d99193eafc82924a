//! The log: reading, checking, copying.

use std::path::PathBuf;

use effectstore::{EffectStore, store};
use pyo3::prelude::*;

use crate::store::Handle;
use crate::wait::{Patience, ask, call};

/// A record of the log.
#[pyclass(frozen, get_all, module = "effectstore._effectstore")]
pub(crate) struct LogEntry {
    seq: u64,
    time_ms: u64,
    kind: String,
    reference: u64,
    text: Option<String>,
    body: Vec<u8>,
    hash: [u8; 32],
}

impl From<store::LogEntry> for LogEntry {
    fn from(entry: store::LogEntry) -> Self {
        LogEntry {
            seq: entry.seq,
            time_ms: entry.time_ms,
            kind: entry.kind,
            reference: entry.reference,
            text: entry.text,
            body: entry.body,
            hash: entry.hash,
        }
    }
}

#[pymethods]
impl Handle {
    fn log(
        &self,
        py: Python<'_>,
        since: u64,
        limit: usize,
        wait_ms: u64,
    ) -> PyResult<Vec<LogEntry>> {
        let found = ask(
            py,
            &Patience::of(wait_ms),
            |slice_ms| self.store()?.log(since, limit, slice_ms),
            |entries| !entries.is_empty(),
        )?;
        Ok(found.into_iter().map(Into::into).collect())
    }

    fn explain(&self, py: Python<'_>, reference: u64) -> PyResult<Vec<LogEntry>> {
        let found = call(py, || self.store()?.explain(reference))?;
        Ok(found.into_iter().map(Into::into).collect())
    }

    /// Records checked, the head (its number and its hash), and the first record of a later version.
    #[pyo3(signature = (from_head))]
    fn verify(
        &self,
        py: Python<'_>,
        from_head: Option<(u64, [u8; 32])>,
    ) -> PyResult<(u64, u64, [u8; 32], Option<u64>)> {
        let found = call(py, || self.store()?.verify(from_head))?;
        let (number, hash) = found.head;
        Ok((found.records, number, hash, found.newer))
    }

    fn backup(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        call(py, || self.store()?.backup(&path)).map(drop)
    }

    fn export(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        call(py, || self.store()?.export(&path)).map(drop)
    }
}

/// Make a new store at `path` of an exported file.
#[pyfunction]
pub(crate) fn import_store(py: Python<'_>, file: PathBuf, path: PathBuf) -> PyResult<()> {
    call(py, || EffectStore::import(&file, &path)).map(drop)
}

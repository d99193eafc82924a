//! The log as it is shown: one record after another, or those of one story.

use std::ops::ControlFlow;

use super::EffectStore;
use super::look::not_found;
use super::sentence::Teller;
use super::tale::Tale;
use crate::codec::{Frame, Newer, Record};
use crate::error::Error;
use crate::log::corrupted;
use crate::storage::StorageError;

/// One record, as `log` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// Its number.
    pub seq: u64,
    /// When it was written, in milliseconds of the store's clock.
    pub time_ms: u64,
    /// Its kind.
    pub kind: String,
    /// The effect, branch, fence, rollback, approval or alert that it is about.
    pub reference: u64,
    /// What it says, as a sentence without payloads; only records of a story are told.
    pub text: Option<String>,
    /// Its header, CBOR.
    pub body: Vec<u8>,
    /// Its chain hash.
    pub hash: [u8; 32],
}

impl EffectStore {
    /// Records after `since`, oldest first; waits for the first one if there is none.
    ///
    /// # Errors
    /// [`StorageError::Corrupted`] names a record that cannot be read.
    pub fn log(&self, since: u64, limit: usize, wait_ms: u64) -> Result<Vec<LogEntry>, Error> {
        let read = || -> Result<Vec<LogEntry>, Error> {
            let view = self.engine().view()?;
            let mut entries = Vec::new();
            let mut failed = None;
            view.scan(since.saturating_add(1), &mut |seq, bytes| match entry(seq, bytes) {
                Ok(entry) => {
                    entries.push(entry);
                    if entries.len() < limit {
                        ControlFlow::Continue(())
                    } else {
                        ControlFlow::Break(())
                    }
                }
                Err(error) => {
                    failed = Some(error);
                    ControlFlow::Break(())
                }
            })?;
            failed.map_or(Ok(entries), |error| Err(Error::Storage(error)))
        };
        self.wait_until(wait_ms, read, |answer| !matches!(answer, Ok(list) if list.is_empty()))
    }

    /// The records of one effect's, branch's, rollback's, fence's or approval's story, in order, each
    /// told in a sentence. A rollback's story tells what became of each of its steps, a branch's what
    /// became of its effects.
    ///
    /// # Errors
    /// [`Refusal::NotFound`].
    pub fn explain(&self, reference: u64) -> Result<Vec<LogEntry>, Error> {
        if self.event(reference)?.is_none() {
            return Err(not_found("record", reference));
        }
        let view = self.engine().view()?;
        let teller = Teller::new(view.as_ref());
        let (mut tale, mut entries) = (Tale::of(reference), Vec::new());
        let mut failed = None;
        view.scan(reference, &mut |seq, bytes| {
            let text = match Record::decode_header(bytes) {
                Ok(header) if tale.hears(seq, &header.event) => {
                    Some(teller.tell(seq, header.time_ms, &header.event))
                }
                Ok(_) => return ControlFlow::Continue(()),
                // Nobody here can say whom a later version's record concerns.
                Err(_) => Some("a later version wrote what this one cannot read".to_owned()),
            };
            match entry(seq, bytes) {
                Ok(told) => {
                    entries.push(LogEntry { text, ..told });
                    ControlFlow::Continue(())
                }
                Err(error) => {
                    failed = Some(error);
                    ControlFlow::Break(())
                }
            }
        })?;
        failed.map_or(Ok(entries), |error| Err(Error::Storage(error)))
    }
}

fn entry(seq: u64, bytes: &[u8]) -> Result<LogEntry, StorageError> {
    let bad = |error| corrupted(format!("record {seq}: {error}"));
    let Frame { header_bytes, hash, .. } = Frame::decode(bytes).map_err(bad)?;
    let (time_ms, kind, reference) = match Record::decode_header(bytes) {
        Ok(header) => {
            let reference = super::story::reference(seq, &header.event);
            (header.time_ms, header.event.kind().to_owned(), reference)
        }
        Err(error) => {
            let newer = Newer::of(&header_bytes).ok_or_else(|| bad(error))?;
            (newer.time_ms, format!("unknown_{}", newer.event), seq)
        }
    };
    Ok(LogEntry { seq, time_ms, kind, reference, text: None, body: header_bytes, hash })
}

//! Settled things, read from the log and its tables within one transaction.

use std::ops::ControlFlow;

use super::index::{branch_row, key_row, name_row, parse_artifact, parse_ended};
use super::{Index, unreadable};
use crate::codec::Record;
use crate::decide::{Ended, Fate, History, HistoryError};
use crate::model::{ArtifactId, BranchId, EffectId, Event};
use crate::storage::{ReadView, StorageError, Table};

/// The past as one transaction sees it.
pub struct Past<'a> {
    view: &'a dyn ReadView,
    index: &'a Index,
}

impl<'a> Past<'a> {
    /// The past of a view; `index` knows what happened since the liveness table was last folded.
    pub fn new(view: &'a dyn ReadView, index: &'a Index) -> Self {
        Past { view, index }
    }

    fn row(&self, table: Table, key: &[u8]) -> Result<Option<u64>, HistoryError> {
        let row = self.view.get(table, key).map_err(|error| unreadable(&error))?;
        let Some(row) = row else { return Ok(None) };
        let bytes = <[u8; 8]>::try_from(row.as_slice())
            .map_err(|_| HistoryError(format!("a row of table {table} is damaged")))?;
        Ok(Some(u64::from_be_bytes(bytes)))
    }
}

fn damaged(seq: u64, error: impl std::fmt::Display) -> HistoryError {
    HistoryError(format!("record {seq}: {error}"))
}

impl History for Past<'_> {
    fn branch_named(&self, name: &str) -> Result<Option<BranchId>, HistoryError> {
        Ok(self.row(Table::Branches, &name_row(name))?.map(BranchId))
    }

    fn ended(&self, branch: BranchId) -> Result<Option<Ended>, HistoryError> {
        let row = self.view.get(Table::Branches, &branch_row(branch.0));
        let row = row.map_err(|error| unreadable(&error))?;
        row.map(|row| parse_ended(&row).map_err(|error| unreadable(&error))).transpose()
    }

    fn known_key(&self, key: &[u8]) -> Result<Option<EffectId>, HistoryError> {
        Ok(self.row(Table::IdempotencyKeys, &key_row(key))?.map(EffectId))
    }

    fn time_ms(&self, seq: u64) -> Result<Option<u64>, HistoryError> {
        let record = self.view.record(seq).map_err(|error| unreadable(&error))?;
        let Some(record) = record else { return Ok(None) };
        let header = Record::decode_header(&record).map_err(|error| damaged(seq, error))?;
        Ok(Some(header.time_ms))
    }

    fn event(&self, seq: u64) -> Result<Option<Event>, HistoryError> {
        let record = self.view.record(seq).map_err(|error| unreadable(&error))?;
        let Some(record) = record else { return Ok(None) };
        let header = Record::decode_header(&record).map_err(|error| damaged(seq, error))?;
        Ok(Some(header.event))
    }

    fn fate(&self, effect: EffectId) -> Result<Option<Fate>, HistoryError> {
        match self.event(effect.0)? {
            Some(Event::Registered(_)) => {}
            _ => return Ok(None),
        }
        let fate = self.index.fate(self.view, effect).map_err(|error| unreadable(&error))?;
        Ok(Some(fate))
    }

    fn artifact(&self, id: ArtifactId) -> Result<Vec<u64>, HistoryError> {
        let row = self.view.get(Table::Artifacts, &id.0.to_be_bytes());
        let row = row.map_err(|error| unreadable(&error))?;
        row.map_or(Ok(Vec::new()), |row| parse_artifact(&row).map_err(|error| unreadable(&error)))
    }

    fn scan(
        &self,
        from: u64,
        visit: &mut dyn FnMut(u64, &Event) -> bool,
    ) -> Result<(), HistoryError> {
        let mut failed: Option<HistoryError> = None;
        let scanned: Result<(), StorageError> =
            self.view.scan(from, &mut |seq, bytes| match Record::decode_header(bytes) {
                Ok(header) if visit(seq, &header.event) => ControlFlow::Continue(()),
                Ok(_) => ControlFlow::Break(()),
                Err(error) => {
                    failed = Some(damaged(seq, error));
                    ControlFlow::Break(())
                }
            });
        scanned.map_err(|error| unreadable(&error))?;
        failed.map_or(Ok(()), Err)
    }
}

//! What the write path's lock protects: the state, the log's end, and reads that wait to be written.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use super::engine::RESTORE_MARK;
use super::holds::Holds;
use super::options::{Clock, MachineClock};
use super::time::StoreTime;
use crate::error::Error;
use crate::log::{Index, Loaded, Tail, catch_up, load};
use crate::model::{AlertInfo, BranchId, Command, Observation, Observed, Reply};
use crate::state::State;
use crate::storage::{ReadView, Storage, StorageError, Table};

/// All that the lock protects.
pub(super) struct Core {
    pub(super) state: State,
    pub(super) tail: Tail,
    pub(super) index: Index,
    /// Observations that wait for their branch's next registration.
    pub(super) pending: BTreeMap<BranchId, Vec<Observation>>,
    /// Branches that another holder may share: their observations are durable at once.
    pub(super) joined: BTreeSet<BranchId>,
    pub(super) poisoned: Option<String>,
    /// A later version of this program has written what this one cannot fold: the log can be read,
    /// and nothing that needs the state.
    pub(super) newer: Option<StorageError>,
    pub(super) closed: bool,
    /// Alerts of the batch under way, for whoever listens.
    pub(super) raised: Vec<AlertInfo>,
    pub(super) holds: Holds,
    /// A backup was opened; the first write starts a new incarnation.
    pub(super) restored: bool,
    /// Whether the anchor of store time is known to be this boot's.
    pub(super) anchored: bool,
}

impl Core {
    /// Memory for a store that is being opened, and its time.
    pub(super) fn load(
        storage: &dyn Storage,
        clock: Option<Clock>,
        machine: Option<MachineClock>,
    ) -> Result<(Self, StoreTime), Error> {
        let view = storage.read()?;
        let restored = view.get(Table::Meta, RESTORE_MARK)?.is_some();
        let (loaded, newer) = match load(view.as_ref()) {
            Err(newer @ StorageError::Format { .. }) => (Loaded::default(), Some(newer)),
            loaded => (loaded?, None),
        };
        let (time, anchored) = StoreTime::new(clock, machine, view.as_ref())?;
        let core = Core {
            state: loaded.state,
            tail: loaded.tail,
            index: loaded.index,
            pending: BTreeMap::new(),
            joined: BTreeSet::new(),
            poisoned: None,
            newer,
            closed: false,
            raised: Vec::new(),
            holds: Holds::default(),
            restored,
            anchored,
        };
        Holds::mark_again(storage, &core.state)?;
        Ok((core, time))
    }

    pub(super) fn usable(&self) -> Result<(), Error> {
        if let Some(cause) = &self.poisoned {
            return Err(Error::Storage(StorageError::Poisoned { cause: cause.clone() }));
        }
        if let Some(newer) = &self.newer {
            return Err(Error::Storage(newer.clone()));
        }
        if self.closed { Err(Error::Storage(StorageError::Closed)) } else { Ok(()) }
    }

    /// Folds what other processes have written.
    pub(super) fn catch_up(&mut self, view: &dyn ReadView) -> Result<(), StorageError> {
        catch_up(view, &mut self.state, &mut self.tail, &mut self.index, u64::MAX)
    }

    /// Folds a part of it; whether any is left is for the next view to say.
    pub(super) fn catch_up_part(
        &mut self,
        view: &dyn ReadView,
        most: u64,
    ) -> Result<(), StorageError> {
        catch_up(view, &mut self.state, &mut self.tail, &mut self.index, most)
    }

    /// After a failed batch the memory is thrown away and built anew from what is durable.
    pub(super) fn reload(&mut self, storage: &dyn Storage, error: &StorageError) {
        let reopened = if error.needs_reopen() { storage.reopen() } else { Ok(()) };
        let loaded = reopened.and_then(|()| load(storage.read()?.as_ref()));
        match loaded {
            Ok(loaded) => {
                self.newer = None;
                self.state = loaded.state;
                self.tail = loaded.tail;
                self.index = loaded.index;
                if let Err(error) = Holds::mark_again(storage, &self.state) {
                    self.poisoned = Some(error.to_string());
                }
            }
            Err(newer @ StorageError::Format { .. }) => self.newer = Some(newer),
            Err(error) => self.poisoned = Some(error.to_string()),
        }
    }

    /// The command, with what its branches have observed since their last registration.
    pub(super) fn with_pending<'c>(&self, command: &'c Command) -> Cow<'c, Command> {
        let Command::Register { calls, .. } = command else { return Cow::Borrowed(command) };
        if self.pending.is_empty() {
            return Cow::Borrowed(command);
        }
        let mut branches: Vec<BranchId> = calls.iter().map(|placed| placed.branch).collect();
        branches.sort_unstable();
        branches.dedup();
        let observed = branches
            .into_iter()
            .filter_map(|branch| {
                let observations = self.pending.get(&branch)?.clone();
                Some(Observed { branch, observations })
            })
            .collect();
        Cow::Owned(Command::Register { calls: calls.clone(), observed })
    }

    /// Observations of other branches go first: what this command decides must know of them.
    pub(super) fn flush_pending(&mut self, command: &Command) -> Option<Command> {
        if self.pending.is_empty() || matches!(command, Command::Observe { .. }) {
            return None;
        }
        let riding: Vec<BranchId> = match command {
            Command::Register { observed, .. } => observed.iter().map(|o| o.branch).collect(),
            _ => Vec::new(),
        };
        let keys: Vec<BranchId> =
            self.pending.keys().copied().filter(|branch| !riding.contains(branch)).collect();
        let observed: Vec<Observed> = keys
            .into_iter()
            .filter_map(|branch| {
                let observations = self.pending.remove(&branch)?;
                Some(Observed { branch, observations })
            })
            .collect();
        (!observed.is_empty()).then_some(Command::Register { calls: Vec::new(), observed })
    }

    /// Keeps what was observed, and lets go what rode along.
    pub(super) fn keep_pending(&mut self, command: &Command, reply: &Result<Reply, Error>) {
        match (command, reply) {
            (Command::Observe { branch, durable: false, .. }, Ok(Reply::Observations(seen))) => {
                self.pending.entry(*branch).or_default().extend(seen.iter().cloned());
            }
            (Command::Register { calls, .. }, Ok(Reply::Receipts(receipts))) => {
                for (placed, receipt) in calls.iter().zip(receipts) {
                    if receipt.created {
                        self.pending.remove(&placed.branch);
                    }
                }
            }
            _ => {}
        }
    }
}

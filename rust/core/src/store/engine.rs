//! The write path: callers queue commands, a leader decides them in order in one transaction, one
//! flush makes them durable, and only then does anyone hear an answer (I8).
//!
//! Invariants:
//! - The state in memory is a prefix of the durable log whenever the lock is free: the lock is held
//!   over the flush, and a failed commit throws the state away and loads it anew. There is no undo code.
//! - Nobody decides or answers from memory before it has folded what other processes have written: a
//!   batch catches up inside its transaction, a look within its view.
//! - No code of a user runs inside a transaction.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::core::Core;
use super::holds::Holds;
use super::options::{Clock, MachineClock, OnAlert};
use super::queue::{Queue, Request};
use super::time::{Anchored, StoreTime};
use crate::codec::Record;
use crate::decide::{Stop, Verdict, decide};
use crate::error::Error;
use crate::log::{Batch, Past, Payloads, Tail};
use crate::model::{Command, Reply};
use crate::storage::{CommitFailure, ReadView, Storage, StorageError, WriteTurn};

/// How many records a writer may be behind when it asks for its turn: it folds the rest while others
/// wait for it.
const NEAR_RECORDS: u64 = 1_000;

/// How many records are folded within one view.
const PART_RECORDS: u64 = 20_000;

/// Bytes of records after which a batch is closed and the next one begins.
const BATCH_BYTES: u64 = 32 << 20;

/// The write path of one open store.
pub(super) struct Engine {
    pub(super) storage: Arc<dyn Storage>,
    core: Mutex<Core>,
    queue: Queue,
    /// How long a writer waits for its turn.
    patience: Duration,
    time: StoreTime,
    on_alert: Option<OnAlert>,
    command_seed: [u8; 32],
    commands: AtomicU64,
}

/// Marks a backup in its meta table.
pub(super) const RESTORE_MARK: &[u8] = b"backup";

pub(super) fn unpoisoned<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    pub(super) fn new(
        storage: Arc<dyn Storage>,
        clock: Option<Clock>,
        machine: Option<MachineClock>,
        patience: Duration,
        on_alert: Option<OnAlert>,
    ) -> Result<Self, Error> {
        let (core, time) = Core::load(storage.as_ref(), clock, machine)?;
        let mut command_seed = [0; 32];
        super::entropy(&mut command_seed)?;
        Ok(Engine {
            storage,
            core: Mutex::new(core),
            queue: Queue::default(),
            patience,
            time,
            on_alert,
            command_seed,
            commands: AtomicU64::new(0),
        })
    }

    /// Store time, in milliseconds since 1970.
    pub(super) fn now_ms(&self) -> u64 {
        self.time.now_ms()
    }

    /// An id that no other command of any process has.
    fn command_id(&self) -> [u8; 16] {
        let number = self.commands.fetch_add(1, Ordering::Relaxed);
        let mut hasher = blake3::Hasher::new_keyed(&self.command_seed);
        hasher.update(&number.to_be_bytes());
        let mut id = [0; 16];
        id.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        id
    }

    /// The state, with all that any process has made durable by now.
    pub(super) fn lock(&self) -> Result<MutexGuard<'_, Core>, Error> {
        Ok(self.look()?.0)
    }

    /// The state, and the view of the log that it is the fold of.
    #[allow(clippy::type_complexity)] // Two parts of one look.
    pub(super) fn look(&self) -> Result<(MutexGuard<'_, Core>, Box<dyn ReadView + '_>), Error> {
        super::clock::outside()?;
        let mut core = unpoisoned(&self.core);
        core.usable()?;
        let view = self.storage.read()?;
        if let Err(error) = core.catch_up(view.as_ref()) {
            drop(view);
            core.reload(self.storage.as_ref(), &error);
            return Err(Error::Storage(error));
        }
        // What the last fence settled is let go before the next command, or before anyone looks.
        core.state.tidy();
        Ok((core, view))
    }

    /// Whether time comes from a clock that the caller gave, so that sleeping does not move it.
    pub(super) fn has_own_clock(&self) -> bool {
        self.time.is_given()
    }

    /// Whether store time is still to be anchored, and may be now: the first write to a restored copy
    /// changes its tokens, so opening one writes nothing.
    pub(super) fn wants_anchor(&self) -> bool {
        let core = unpoisoned(&self.core);
        !core.anchored && !core.restored
    }

    /// What the storage says of itself.
    pub(super) fn stats(&self) -> Result<crate::storage::StorageStats, Error> {
        Ok(self.storage.stats()?)
    }

    pub(super) fn view(&self) -> Result<Box<dyn ReadView + '_>, Error> {
        Ok(self.storage.read()?)
    }

    /// Decides a command and answers once its events are durable.
    pub(super) fn submit(&self, command: Command, payloads: Payloads) -> Result<Reply, Error> {
        super::clock::outside()?;
        // New work needs the disk reserve; what ends or undoes old work may use it up.
        if matches!(command, Command::Register { .. } | Command::CreateBranch { .. }) {
            self.storage.reserve_ok()?;
        }
        let request = Request::new(self.command_id(), command, payloads);
        if self.queue.join(&request) {
            self.lead();
        }
        request.answer()
    }

    /// Decides what is queued, one's own command among it, and hands the lead on.
    fn lead(&self) {
        self.queue.gather();
        let turn = self.take_turn();
        let mut core = unpoisoned(&self.core);
        let requests = self.queue.take_all();
        let began = Instant::now();
        let answers = self.work(&mut core, turn, &requests);
        let took = began.elapsed();
        let raised = std::mem::take(&mut core.raised);
        drop(core);
        // The disk is not left idle while answers are handed out.
        self.queue.hand_on(requests.len(), took);
        for (request, answer) in requests.iter().zip(answers) {
            request.tell(answer);
        }
        if let Some(on_alert) = &self.on_alert {
            for alert in &raised {
                on_alert(alert);
            }
        }
    }

    /// The turn to write. It is waited for without the lock over the state, so that others may look
    /// meanwhile, and close to the log's end, so that nobody waits for this process to catch up.
    fn take_turn(&self) -> Result<WriteTurn<'_>, StorageError> {
        loop {
            let mut core = unpoisoned(&self.core);
            let behind = self.storage.durable_head().saturating_sub(core.tail.head);
            // Whoever uses the turn looks again whether the store is usable, and says so.
            if behind < NEAR_RECORDS || core.usable().is_err() {
                break;
            }
            let before = core.tail.head;
            let view = self.storage.read()?;
            if let Err(error) = core.catch_up_part(view.as_ref(), PART_RECORDS) {
                drop(view);
                core.reload(self.storage.as_ref(), &error);
                break;
            }
            // The hint may be wrong; what was found is not.
            if core.tail.head - before < NEAR_RECORDS {
                break;
            }
        }
        self.storage.take_turn(self.patience)
    }

    /// Works through requests in batches of bounded size.
    fn work(
        &self,
        core: &mut Core,
        turn: Result<WriteTurn<'_>, StorageError>,
        requests: &[Arc<Request>],
    ) -> Vec<Result<Reply, Error>> {
        let mut answers = Vec::with_capacity(requests.len());
        let mut first_turn = Some(turn);
        while answers.len() < requests.len() {
            if let Err(error) = core.usable() {
                answers.resize(requests.len(), Err(error));
                break;
            }
            let rest = &requests[answers.len()..];
            let (pending, restored) = (core.pending.clone(), core.restored);
            let anchored = core.anchored;
            let (mut said, heard) = (Vec::new(), core.raised.len());
            let turn = first_turn.take().unwrap_or_else(|| self.storage.take_turn(self.patience));
            let worked = match turn {
                Ok(turn) => {
                    catch_unwind(AssertUnwindSafe(|| self.batch(core, turn, rest, &mut said)))
                }
                Err(busy @ StorageError::StoreBusy { .. }) => {
                    // Nothing was begun, so memory is what it was.
                    answers.resize(requests.len(), Err(Error::Storage(busy)));
                    break;
                }
                Err(error) => Ok(Err(error)),
            };
            match worked {
                Ok(Ok(())) => answers.append(&mut said),
                Ok(Err(error)) => {
                    let (end, raised) = (core.tail, core.raised.split_off(heard));
                    core.reload(self.storage.as_ref(), &error);
                    // Whatever became of the anchor, the next batch looks.
                    core.anchored = anchored;
                    match self.settle_doubt(core, end, error) {
                        Ok(()) => {
                            core.raised.extend(raised);
                            answers.append(&mut said);
                        }
                        Err(error) => {
                            // Nothing of the batch is known to have happened, so what rode along
                            // still waits to be written.
                            core.pending = pending;
                            core.restored = restored;
                            answers.resize(requests.len(), Err(Error::Storage(error)));
                        }
                    }
                }
                Err(panic) => {
                    core.raised.truncate(heard);
                    let cause = panic_text(panic.as_ref());
                    core.poisoned = Some(cause.clone());
                    let error = Error::Storage(StorageError::Poisoned { cause });
                    answers.resize(requests.len(), Err(error));
                }
            }
        }
        answers
    }

    /// Decides as many requests as fit one transaction and commits it; what they are to be told is
    /// in `answers`.
    fn batch(
        &self,
        core: &mut Core,
        turn: WriteTurn<'_>,
        requests: &[Arc<Request>],
        answers: &mut Vec<Result<Reply, Error>>,
    ) -> Result<(), StorageError> {
        let mut batch = Batch::new(self.storage.write_in(turn)?);
        core.catch_up(batch.write.as_ref() as &dyn ReadView)?;
        let anchors = self.anchor(core, &mut batch)?;
        let lost = core.holds.lost(self.storage.as_ref(), &core.state)?;
        if !lost.is_empty() {
            let gone = Command::WorkersGone { holds: lost };
            let (none, now_ms) = (Payloads::default(), self.now_ms());
            self.run(core, &mut batch, &gone, &none, self.command_id(), now_ms)?.ok();
        }
        let most = core.state.limits.batch_records;
        for request in requests {
            answers.push(self.decide_one(core, &mut batch, request)?);
            if batch.records >= most || batch.bytes >= BATCH_BYTES {
                break;
            }
        }
        if batch.records > 0 || anchors {
            batch.write.commit()?;
            Holds::let_go(self.storage.as_ref(), &core.state);
        }
        Ok(())
    }

    /// Anchors store time at the first write of a boot; whether that is to be made durable. Leases of
    /// the boot before are over.
    fn anchor(&self, core: &mut Core, batch: &mut Batch<'_>) -> Result<bool, StorageError> {
        if core.anchored {
            return Ok(false);
        }
        core.anchored = true;
        let anchored = self.time.anchor(batch.write.as_mut())?;
        if anchored == Anchored::NewBoot {
            let (none, now_ms) = (Payloads::default(), self.now_ms());
            self.run(core, batch, &Command::NewBoot, &none, self.command_id(), now_ms)?.ok();
        }
        Ok(anchored != Anchored::Found)
    }

    /// After a commit whose outcome is unknown: one durable commit first, so that what is read now
    /// cannot vanish in a power cut, then a look for the batch's last record. The chain's hash covers
    /// all that came before, so that one record tells whether the batch was kept. `Ok`: it was;
    /// otherwise the error that its callers are told.
    fn settle_doubt(
        &self,
        core: &mut Core,
        end: Tail,
        error: StorageError,
    ) -> Result<(), StorageError> {
        let StorageError::CommitUnknown { cause } = &error else { return Err(error) };
        if core.usable().is_err() {
            return Err(error);
        }
        let reopen = || -> Result<bool, StorageError> {
            let mut batch = Batch::new(self.storage.write()?);
            core.catch_up(batch.write.as_ref() as &dyn ReadView)?;
            let (none, now_ms) = (Payloads::default(), self.now_ms());
            self.run(core, &mut batch, &Command::Reopen, &none, self.command_id(), now_ms)?.ok();
            batch.write.commit()?;
            let last = self.storage.read()?.record(end.head)?.map(std::borrow::Cow::into_owned);
            Ok(last.is_some_and(|last| Record::stored_hash(&last) == Some(end.hash)))
        };
        match { reopen }() {
            Ok(true) => Ok(()),
            Ok(false) => {
                Err(StorageError::NotCommitted { cause: CommitFailure::Io(cause.clone()) })
            }
            Err(again) => {
                core.reload(self.storage.as_ref(), &again);
                Err(error)
            }
        }
    }

    fn decide_one(
        &self,
        core: &mut Core,
        batch: &mut Batch<'_>,
        request: &Request,
    ) -> Result<Result<Reply, Error>, StorageError> {
        let now_ms = self.now_ms();
        if core.restored {
            core.restored = false;
            self.restore(core, batch, now_ms)?;
        }
        let command = core.with_pending(&request.command);
        if let Some(flush) = core.flush_pending(&command) {
            self.run(core, batch, &flush, &Payloads::default(), self.command_id(), now_ms)?.ok();
        }
        let reply = self.run(core, batch, &command, &request.payloads, request.id, now_ms)?;
        core.keep_pending(&command, &reply);
        Ok(reply)
    }

    fn restore(
        &self,
        core: &mut Core,
        batch: &mut Batch<'_>,
        now_ms: u64,
    ) -> Result<(), StorageError> {
        // Another process may have been first.
        if batch.write.get(crate::storage::Table::Meta, RESTORE_MARK)?.is_none() {
            return Ok(());
        }
        batch.write.delete(crate::storage::Table::Meta, RESTORE_MARK)?;
        let none = Payloads::default();
        self.run(core, batch, &Command::Restore, &none, self.command_id(), now_ms)?.ok();
        Ok(())
    }

    fn run(
        &self,
        core: &mut Core,
        batch: &mut Batch<'_>,
        command: &Command,
        payloads: &Payloads,
        id: [u8; 16],
        now_ms: u64,
    ) -> Result<Result<Reply, Error>, StorageError> {
        core.index.prepare_fold(&mut core.state, core.tail.head);
        let Verdict { events, reply } = {
            let past = Past::new(batch.write.as_ref() as &dyn ReadView, &core.index);
            decide(&mut core.state, &past, command, now_ms)
        };
        if let Err(Stop::Unreadable(error)) = reply {
            return Err(StorageError::Corrupted { place: error.0 });
        }
        for (seq, event) in (core.tail.head + 1..).zip(&events) {
            Holds::take(self.storage.as_ref(), core.state.store_id, seq, event)?;
            if let (Some(alert), true) = (core.state.alerts.get(&seq), self.on_alert.is_some()) {
                core.raised.push(alert.clone());
            }
        }
        let Core { state, tail, index, .. } = core;
        batch.append(tail, index, state, command, id, now_ms, &events, payloads)?;
        Ok(reply.map_err(Error::from))
    }

    /// Makes pending observations durable and lets nobody in any more.
    pub(super) fn close(&self) -> Result<(), Error> {
        super::clock::outside()?;
        let flush = {
            let core = unpoisoned(&self.core);
            if core.closed || core.poisoned.is_some() {
                return Ok(());
            }
            !core.pending.is_empty()
        };
        if flush {
            self.submit(Command::Tick, Payloads::default())?;
        }
        unpoisoned(&self.core).closed = true;
        self.storage.announce();
        Ok(())
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without text".to_owned())
}

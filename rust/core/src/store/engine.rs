//! The write path: callers queue commands, a leader decides them in order in one transaction, one
//! flush makes them durable, and only then does anyone hear an answer (I8).
//!
//! Invariants:
//! - The state in memory is a prefix of the durable log whenever the lock is free: the lock is held
//!   over the flush, and a failed commit throws the state away and loads it anew. There is no undo code.
//! - Nobody decides or answers from memory before it has folded what other processes have written: a
//!   batch catches up inside its transaction, a look within its view.
//! - No code of a user runs inside a transaction.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use super::holds::Holds;
use super::options::Clock;
use crate::decide::{Stop, Verdict, decide};
use crate::error::Error;
use crate::log::{Batch, Index, Past, Payloads, Tail, catch_up, load};
use crate::model::{BranchId, Command, Observation, Observed, Reply};
use crate::state::State;
use crate::storage::{ReadView, Storage, StorageError};

/// How long a leader waits at most for callers that were there a moment ago.
const GATHER: Duration = Duration::from_micros(300);

/// Bytes of records after which a batch is closed and the next one begins.
const BATCH_BYTES: u64 = 32 << 20;

const WAITING: u8 = 0;
const LEADING: u8 = 1;
const ANSWERED: u8 = 2;

/// One caller's command and, later, its answer.
struct Request {
    command: Command,
    payloads: Payloads,
    id: [u8; 16],
    answer: Mutex<Option<Result<Reply, Error>>>,
    stage: AtomicU8,
    thread: Thread,
}

/// All that the lock protects.
pub(super) struct Core {
    pub(super) state: State,
    tail: Tail,
    pub(super) index: Index,
    /// Observations that wait for their branch's next registration.
    pending: BTreeMap<BranchId, Vec<Observation>>,
    /// Branches that another holder may share: their observations are durable at once.
    pub(super) joined: BTreeSet<BranchId>,
    poisoned: Option<String>,
    closed: bool,
    holds: Holds,
    /// A backup was opened; the first write starts a new incarnation.
    restored: bool,
}

#[derive(Default)]
struct Queue {
    requests: VecDeque<Arc<Request>>,
    leader: bool,
    /// How many callers there were around the last batch: in it, or queued when it ended.
    callers: usize,
}

/// The write path of one open store.
pub(super) struct Engine {
    pub(super) storage: Arc<dyn Storage>,
    core: Mutex<Core>,
    queue: Mutex<Queue>,
    /// Counts batches that changed something; waiters sleep on it.
    changes: Mutex<u64>,
    changed: Condvar,
    clock: Option<Clock>,
    command_seed: [u8; 32],
    commands: AtomicU64,
}

/// Marks a backup in its meta table.
pub(super) const RESTORE_MARK: &[u8] = b"backup";

pub(super) fn unpoisoned<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    pub(super) fn new(storage: Arc<dyn Storage>, clock: Option<Clock>) -> Result<Self, Error> {
        let (loaded, restored) = {
            let view = storage.read()?;
            let restored = view.get(crate::storage::Table::Meta, RESTORE_MARK)?.is_some();
            (load(view.as_ref())?, restored)
        };
        let core = Core {
            state: loaded.state,
            tail: loaded.tail,
            index: loaded.index,
            pending: BTreeMap::new(),
            joined: BTreeSet::new(),
            poisoned: None,
            closed: false,
            holds: Holds::default(),
            restored,
        };
        Holds::mark_again(storage.as_ref(), &core.state)?;
        let mut command_seed = [0; 32];
        super::entropy(&mut command_seed)?;
        Ok(Engine {
            storage,
            core: Mutex::new(core),
            queue: Mutex::new(Queue::default()),
            changes: Mutex::new(0),
            changed: Condvar::new(),
            clock,
            command_seed,
            commands: AtomicU64::new(0),
        })
    }

    /// Store time, in milliseconds since 1970.
    pub(super) fn now_ms(&self) -> u64 {
        match &self.clock {
            Some(clock) => clock(),
            None => super::system_now_ms(),
        }
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

    pub(super) fn view(&self) -> Result<Box<dyn ReadView + '_>, Error> {
        unpoisoned(&self.core).usable()?;
        Ok(self.storage.read()?)
    }

    /// Decides a command and answers once its events are durable.
    pub(super) fn submit(&self, command: Command, payloads: Payloads) -> Result<Reply, Error> {
        if std::mem::discriminant(&command) != std::mem::discriminant(&Command::Tick)
            && matches!(command, Command::Register { .. } | Command::CreateBranch { .. })
        {
            self.storage.reserve_ok()?;
        }
        let request = Arc::new(Request {
            command,
            payloads,
            id: self.command_id(),
            answer: Mutex::new(None),
            stage: AtomicU8::new(WAITING),
            thread: std::thread::current(),
        });
        let leads = {
            let mut queue = unpoisoned(&self.queue);
            queue.requests.push_back(Arc::clone(&request));
            !std::mem::replace(&mut queue.leader, true)
        };
        if !leads {
            while request.stage.load(Ordering::Acquire) == WAITING {
                std::thread::park();
            }
        }
        if request.stage.load(Ordering::Acquire) != ANSWERED {
            self.lead();
        }
        let answer = unpoisoned(&request.answer).take();
        answer.unwrap_or_else(|| {
            Err(Error::Storage(StorageError::Poisoned { cause: "a leader left no answer".into() }))
        })
    }

    /// Decides what is queued, one's own command among it, and hands the lead on.
    fn lead(&self) {
        let mut core = unpoisoned(&self.core);
        self.gather();
        let requests: Vec<Arc<Request>> = {
            let mut queue = unpoisoned(&self.queue);
            queue.requests.drain(..).collect()
        };
        let (answers, changed) = self.work(&mut core, &requests);
        drop(core);
        let next = {
            let mut queue = unpoisoned(&self.queue);
            let next = queue.requests.front().cloned();
            queue.leader = next.is_some();
            queue.callers = requests.len() + queue.requests.len();
            next
        };
        if let Some(next) = next {
            next.stage.store(LEADING, Ordering::Release);
            next.thread.unpark();
        }
        for (request, answer) in requests.iter().zip(answers) {
            *unpoisoned(&request.answer) = Some(answer);
            request.stage.store(ANSWERED, Ordering::Release);
            request.thread.unpark();
        }
        if changed {
            *unpoisoned(&self.changes) += 1;
            self.changed.notify_all();
        }
    }

    /// Waits a moment for callers that have just been answered and will ask again, so that they
    /// share the flush. A lone caller never waits.
    fn gather(&self) {
        let began = Instant::now();
        loop {
            {
                let queue = unpoisoned(&self.queue);
                if queue.callers <= 1 || queue.requests.len() >= queue.callers {
                    return;
                }
            }
            if began.elapsed() >= GATHER {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Works through requests in batches of bounded size.
    fn work(
        &self,
        core: &mut Core,
        requests: &[Arc<Request>],
    ) -> (Vec<Result<Reply, Error>>, bool) {
        let mut answers = Vec::with_capacity(requests.len());
        let mut changed = false;
        while answers.len() < requests.len() {
            if let Err(error) = core.usable() {
                answers.resize(requests.len(), Err(error));
                break;
            }
            let rest = &requests[answers.len()..];
            let worked = catch_unwind(AssertUnwindSafe(|| self.batch(core, rest)));
            match worked {
                Ok(Ok((batch, wrote))) => {
                    changed |= wrote;
                    answers.extend(batch);
                }
                Ok(Err(error)) => {
                    core.reload(self.storage.as_ref(), &error);
                    answers.resize(requests.len(), Err(Error::Storage(error)));
                }
                Err(panic) => {
                    let cause = panic_text(panic.as_ref());
                    core.poisoned = Some(cause.clone());
                    let error = Error::Storage(StorageError::Poisoned { cause });
                    answers.resize(requests.len(), Err(error));
                }
            }
        }
        (answers, changed)
    }

    /// Decides as many requests as fit one transaction and commits it.
    #[allow(clippy::type_complexity)] // Answers, and whether anything was written.
    fn batch(
        &self,
        core: &mut Core,
        requests: &[Arc<Request>],
    ) -> Result<(Vec<Result<Reply, Error>>, bool), StorageError> {
        let mut batch = Batch::new(self.storage.write()?);
        core.catch_up(batch.write.as_ref() as &dyn ReadView)?;
        let lost = core.holds.lost(self.storage.as_ref(), &core.state)?;
        if !lost.is_empty() {
            let gone = Command::WorkersGone { holds: lost };
            let (none, now_ms) = (Payloads::default(), self.now_ms());
            self.run(core, &mut batch, &gone, &none, self.command_id(), now_ms)?.ok();
        }
        let most = core.state.limits.batch_records;
        let mut answers = Vec::new();
        for request in requests {
            answers.push(self.decide_one(core, &mut batch, request)?);
            if batch.records >= most || batch.bytes >= BATCH_BYTES {
                break;
            }
        }
        let wrote = batch.records > 0;
        if wrote {
            batch.write.commit()?;
            Holds::let_go(self.storage.as_ref(), &core.state);
        }
        Ok((answers, wrote))
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
        }
        let Core { state, tail, index, .. } = core;
        batch.append(tail, index, state, command, id, now_ms, &events, payloads)?;
        Ok(reply.map_err(Error::from))
    }

    /// Makes pending observations durable and lets nobody in any more.
    pub(super) fn close(&self) -> Result<(), Error> {
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
        self.changed.notify_all();
        Ok(())
    }

    /// How many batches have changed something so far.
    pub(super) fn changes(&self) -> u64 {
        *unpoisoned(&self.changes)
    }

    /// Sleeps until something changes after `seen`, or a moment passes.
    pub(super) fn wait_for_change(&self, seen: u64, at_most: Duration) {
        let changes = unpoisoned(&self.changes);
        if *changes == seen {
            drop(self.changed.wait_timeout(changes, at_most));
        }
    }

    /// Tells waiters to look again.
    pub(super) fn nudge(&self) {
        *unpoisoned(&self.changes) += 1;
        self.changed.notify_all();
    }
}

impl Core {
    fn usable(&self) -> Result<(), Error> {
        if let Some(cause) = &self.poisoned {
            return Err(Error::Storage(StorageError::Poisoned { cause: cause.clone() }));
        }
        if self.closed { Err(Error::Storage(StorageError::Closed)) } else { Ok(()) }
    }

    /// Folds what other processes have written.
    fn catch_up(&mut self, view: &dyn ReadView) -> Result<(), StorageError> {
        catch_up(view, &mut self.state, &mut self.tail, &mut self.index)
    }

    /// After a failed batch the memory is thrown away and built anew from what is durable.
    fn reload(&mut self, storage: &dyn Storage, error: &StorageError) {
        let reopened = if error.needs_reopen() { storage.reopen() } else { Ok(()) };
        let loaded = reopened.and_then(|()| load(storage.read()?.as_ref()));
        match loaded {
            Ok(loaded) => {
                self.state = loaded.state;
                self.tail = loaded.tail;
                self.index = loaded.index;
                if let Err(error) = Holds::mark_again(storage, &self.state) {
                    self.poisoned = Some(error.to_string());
                }
            }
            Err(error) => self.poisoned = Some(error.to_string()),
        }
    }

    /// The command, with what its branches have observed since their last registration.
    fn with_pending<'c>(&self, command: &'c Command) -> Cow<'c, Command> {
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
    fn flush_pending(&mut self, command: &Command) -> Option<Command> {
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
    fn keep_pending(&mut self, command: &Command, reply: &Result<Reply, Error>) {
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

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without text".to_owned())
}

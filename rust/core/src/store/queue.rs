//! Callers that want to write, and which of them leads: the leader decides for all that wait.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use super::engine::unpoisoned;
use crate::error::Error;
use crate::log::Payloads;
use crate::model::{Command, Reply};
use crate::storage::StorageError;

/// How long a leader waits at most for callers that were there a moment ago.
const GATHER_MOST: Duration = Duration::from_millis(1);

/// How long it waits for the next one of them.
const GATHER_SLICE: Duration = Duration::from_micros(100);

/// How long after a batch its callers count as just answered.
const GATHER_FRESH: Duration = Duration::from_micros(150);

const WAITING: u8 = 0;
const LEADING: u8 = 1;
const ANSWERED: u8 = 2;

/// One caller's command and, later, its answer.
pub(super) struct Request {
    pub(super) id: [u8; 16],
    pub(super) command: Command,
    pub(super) payloads: Payloads,
    answer: Mutex<Option<Result<Reply, Error>>>,
    stage: AtomicU8,
    thread: Thread,
}

impl Request {
    /// A request of the current thread.
    pub(super) fn new(id: [u8; 16], command: Command, payloads: Payloads) -> Arc<Self> {
        Arc::new(Request {
            id,
            command,
            payloads,
            answer: Mutex::new(None),
            stage: AtomicU8::new(WAITING),
            thread: std::thread::current(),
        })
    }

    fn wake(&self, stage: u8) {
        self.stage.store(stage, Ordering::Release);
        self.thread.unpark();
    }

    /// Hands the answer to the thread that waits for it.
    pub(super) fn tell(&self, answer: Result<Reply, Error>) {
        *unpoisoned(&self.answer) = Some(answer);
        self.wake(ANSWERED);
    }

    /// The answer, once it was told.
    pub(super) fn answer(&self) -> Result<Reply, Error> {
        unpoisoned(&self.answer).take().unwrap_or_else(|| {
            let cause = "a leader left no answer".into();
            Err(Error::Storage(StorageError::Poisoned { cause }))
        })
    }
}

#[derive(Default)]
struct Waiting {
    requests: VecDeque<Arc<Request>>,
    leader: bool,
    /// How many callers there were around the last batch: in it, or queued when it ended.
    callers: usize,
    /// How long the last batch took, its flush included.
    last_batch: Duration,
    /// When it ended.
    ended: Option<Instant>,
    /// A leader waits for callers.
    gathering: bool,
}

/// The requests that wait, in the order in which they came.
#[derive(Default)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    /// Tells a gathering leader that all whom it waits for are there.
    gathered: Condvar,
}

impl Queue {
    /// Waits until the request is answered, or its thread is to lead: whether it is.
    pub(super) fn join(&self, request: &Arc<Request>) -> bool {
        let leads = {
            let mut waiting = unpoisoned(&self.waiting);
            waiting.requests.push_back(Arc::clone(request));
            if waiting.gathering && waiting.requests.len() >= waiting.callers {
                self.gathered.notify_one();
            }
            !std::mem::replace(&mut waiting.leader, true)
        };
        if !leads {
            while request.stage.load(Ordering::Acquire) == WAITING {
                std::thread::park();
            }
        }
        request.stage.load(Ordering::Acquire) != ANSWERED
    }

    /// Waits a moment for callers that have just been answered and will ask again, so that they
    /// share the flush: as long as they keep coming, and no longer than a flush takes. A lone caller
    /// never waits, nor does one who comes long after the last batch. The wait sleeps: on few cores a spinning leader keeps away whom it waits for.
    pub(super) fn gather(&self) {
        let began = Instant::now();
        let mut waiting = unpoisoned(&self.waiting);
        if waiting.ended.is_none_or(|ended| ended.elapsed() > GATHER_FRESH) {
            return;
        }
        let most = waiting.last_batch.clamp(GATHER_SLICE, GATHER_MOST);
        waiting.gathering = true;
        while waiting.callers > 1
            && waiting.requests.len() < waiting.callers
            && began.elapsed() < most
        {
            let before = waiting.requests.len();
            let slept = self.gathered.wait_timeout(waiting, GATHER_SLICE);
            waiting = slept.unwrap_or_else(PoisonError::into_inner).0;
            if waiting.requests.len() == before {
                break;
            }
        }
        waiting.gathering = false;
    }

    /// Everything that waits.
    pub(super) fn take_all(&self) -> Vec<Arc<Request>> {
        unpoisoned(&self.waiting).requests.drain(..).collect()
    }

    /// The lead passes to the first that came meanwhile, if anybody did.
    pub(super) fn hand_on(&self, answered: usize, took: Duration) {
        let next = {
            let mut waiting = unpoisoned(&self.waiting);
            let next = waiting.requests.front().cloned();
            waiting.leader = next.is_some();
            waiting.callers = answered + waiting.requests.len();
            waiting.last_batch = took;
            waiting.ended = Some(Instant::now());
            next
        };
        if let Some(next) = next {
            next.wake(LEADING);
        }
    }
}

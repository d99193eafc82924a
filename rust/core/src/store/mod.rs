//! The store: verbs on top of the decisions, the log and the storage.

mod artifact;
mod breaks;
mod clock;
mod compensate;
mod core;
mod doubt;
mod engine;
mod holds;
mod keep;
mod kept;
mod log;
mod look;
mod metrics;
mod options;
mod queue;
mod resting;
mod review;
mod rollbacks;
mod sentence;
mod sentence_undo;
mod steps;
mod story;
mod tale;
mod time;
mod verbs;
mod wait;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub use artifact::{Artifacts, Content, NewArtifact, sha256};
pub use breaks::BreakSignal;
pub use compensate::{CompensateOptions, CompensationReport, Handled};
pub use log::LogEntry;
pub use look::EffectFilter;
pub use metrics::{WINDOW_MS, WINDOW_RECORDS};
pub use options::{Clock, MachineClock, MachineTime, OnAlert, Options};
pub use verbs::NewBranch;

pub use crate::log::{Payloads, VerifyReport};

use crate::error::Error;
use crate::model::{Command, Limits, Policy};
use crate::storage::{LmdbStorage, MemoryStorage, Storage, StorageError, StorageOptions};
use engine::Engine;

/// An open store. Clones share it; the last one that goes closes it.
///
/// ```
/// # fn main() -> Result<(), effectstore::Error> {
/// use effectstore::model::{Escalate, FenceStatus, Inverse, Placed, Registration, Target};
/// use effectstore::store::{NewBranch, Payloads};
/// use effectstore::{EffectStore, Options};
///
/// let dir = tempfile::tempdir().expect("a temporary directory");
/// let store = EffectStore::open(dir.path().join("store"), Options::default())?;
/// let branch = store.create_branch(NewBranch::named("plan-A"))?;
///
/// let mut payloads = Payloads::default();
/// let args = payloads.put(b"\xa1\x61v\x01".to_vec());
/// let undo = payloads.put(b"\xa1\x61v\x00".to_vec());
/// let call = Registration::new("set", args).writes("v").inverse(Inverse::call("set", Some(undo)));
/// let placed = Placed { branch: branch.id, token: branch.token, call };
/// let receipt = store.register(vec![placed], payloads, 0)?[0];
/// // The tool runs here; its effect is recorded with its undo already.
/// let token = receipt.token.expect("a new effect has a token");
/// store.done(receipt.effect, token, b"\xf6".to_vec(), None, Payloads::default(), true)?;
///
/// let fence = store.commit(Target::Branch(branch.id), branch.token, Escalate::Wait, 0)?;
/// assert_eq!(fence.status, FenceStatus::Committed);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct EffectStore {
    inner: Arc<Inner>,
}

struct Inner {
    engine: Engine,
    path: PathBuf,
    read_only: bool,
}

impl std::fmt::Debug for EffectStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EffectStore").field("path", &self.inner.path).finish_non_exhaustive()
    }
}

/// Fills bytes from the system's source of randomness.
fn entropy(bytes: &mut [u8]) -> Result<(), Error> {
    let read = std::fs::File::open("/dev/urandom")
        .and_then(|mut source| std::io::Read::read_exact(&mut source, bytes));
    read.map_err(|error| {
        Error::Storage(StorageError::Io {
            op: "read /dev/urandom".into(),
            source: error.to_string(),
        })
    })
}

/// The wall clock, in milliseconds since 1970.
fn system_now_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

impl EffectStore {
    /// Opens the store in a directory, and makes it if it is not there.
    ///
    /// # Errors
    /// [`Error::Storage`] where the directory, the file or the process does not allow it. A store in
    /// which a later version of this program has written is opened: its log can be read, verified
    /// and copied, all else answers with [`StorageError::Format`].
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<EffectStore, Error> {
        let path = path.as_ref().to_path_buf();
        let now_ms = options.clock.as_ref().map_or_else(system_now_ms, |clock| clock());
        let storage_options = StorageOptions {
            create: options.create,
            read_only: options.read_only,
            map_size_bytes: options.map_size,
            created_ms: now_ms,
            ..StorageOptions::default()
        };
        let storage = LmdbStorage::open(&path, &storage_options)?;
        Self::start(storage, path, options)
    }

    /// A store in memory, which is gone with its last handle. The same code runs on it.
    ///
    /// # Errors
    /// As [`EffectStore::open`].
    pub fn in_memory(options: Options) -> Result<EffectStore, Error> {
        let mut id = [0; 16];
        entropy(&mut id)?;
        let storage = Arc::new(MemoryStorage::new(id, &StorageOptions::default()));
        Self::start(storage, PathBuf::from(":memory:"), options)
    }

    fn start(
        storage: Arc<dyn Storage>,
        path: PathBuf,
        options: Options,
    ) -> Result<EffectStore, Error> {
        clock::same(&storage, options.clock.as_ref())?;
        let store_id = storage.format().store_id;
        let patience = Duration::from_millis(options.busy_timeout_ms);
        let engine =
            Engine::new(storage, options.clock, options.machine, patience, options.on_alert)?;
        let empty = match engine.lock() {
            // What can be read can be read; whatever else is asked for says so.
            Err(Error::Storage(StorageError::Format { .. })) => false,
            core => core?.state.head == 0,
        };
        if empty && !options.read_only {
            let create = Command::Create {
                store_id,
                limits: options.limits.unwrap_or_default(),
                policy: options.policy.unwrap_or_default(),
            };
            engine.submit(create, Payloads::default())?;
        } else if !options.read_only && engine.wants_anchor() {
            // Somebody is the first of the boot. If that cannot be written now, the next write does it.
            let _ = engine.submit(Command::Tick, Payloads::default());
        }
        Ok(EffectStore { inner: Arc::new(Inner { engine, path, read_only: options.read_only }) })
    }

    fn engine(&self) -> &Engine {
        &self.inner.engine
    }

    fn writable(&self) -> Result<(), Error> {
        if self.inner.read_only { Err(Error::Storage(StorageError::ReadOnly)) } else { Ok(()) }
    }

    fn submit(&self, command: Command) -> Result<crate::model::Reply, Error> {
        self.submit_with(command, Payloads::default())
    }

    fn submit_with(
        &self,
        command: Command,
        payloads: Payloads,
    ) -> Result<crate::model::Reply, Error> {
        self.writable()?;
        self.engine().submit(command, payloads)
    }

    /// Closes the store for every holder of this handle's clones; it decides nothing.
    ///
    /// # Errors
    /// Where what was observed could not be made durable.
    pub fn close(&self) -> Result<(), Error> {
        self.engine().close()
    }

    /// The directory.
    pub fn path(&self) -> PathBuf {
        self.inner.path.clone()
    }

    /// The store's id, random and for ever.
    ///
    /// # Errors
    /// Where the store is closed or unusable.
    pub fn store_id(&self) -> Result<[u8; 16], Error> {
        Ok(self.engine().lock()?.state.store_id)
    }

    /// How often the store was restored from a backup, plus one.
    ///
    /// # Errors
    /// Where the store is closed or unusable.
    pub fn incarnation(&self) -> Result<u64, Error> {
        Ok(self.engine().lock()?.state.incarnation)
    }

    /// The limits in force.
    ///
    /// # Errors
    /// Where the store is closed or unusable.
    pub fn limits(&self) -> Result<Limits, Error> {
        Ok(self.engine().lock()?.state.limits.clone())
    }

    /// The policy in force.
    ///
    /// # Errors
    /// Where the store is closed or unusable.
    pub fn policy(&self) -> Result<Policy, Error> {
        Ok(self.engine().lock()?.state.policy.clone())
    }

    /// Store time, in milliseconds since 1970. Within a boot of the machine it is the same for all
    /// processes and does not follow steps of the wall clock.
    pub fn now_ms(&self) -> u64 {
        self.engine().now_ms()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.read_only {
            // What could not be flushed was answered as volatile; there is nobody left to tell.
            let _ = self.engine.close();
        }
    }
}

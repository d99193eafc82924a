//! The handle of an open store: opening, closing, settings.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use effectstore::storage::StorageError;
use effectstore::store::{Clock, OnAlert};
use effectstore::{EffectStore, Error, Options};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::approval::severity_word;
use crate::policy::{LimitsDict, PolicyDict, policy_out};
use crate::wait::call;

/// An open store. Every call detaches from the interpreter while the core works.
#[pyclass(frozen, module = "effectstore._effectstore")]
pub(crate) struct Handle {
    store: RwLock<Option<EffectStore>>,
}

impl Handle {
    /// The store, for one call. A closed handle holds none, so that its files are let go.
    pub(crate) fn store(&self) -> Result<EffectStore, Error> {
        let held = self.store.read().unwrap_or_else(PoisonError::into_inner);
        held.clone().ok_or(Error::Storage(StorageError::Closed))
    }
}

#[pymethods]
impl Handle {
    /// Open the store at `path`; `None` keeps it in memory.
    #[staticmethod]
    #[pyo3(signature = (path, *, create, read_only, limits, policy, map_size, busy_timeout_ms, clock, on_alert=None))]
    #[allow(clippy::too_many_arguments)] // One for each option.
    fn open(
        py: Python<'_>,
        path: Option<PathBuf>,
        create: bool,
        read_only: bool,
        limits: Option<LimitsDict>,
        policy: Option<PolicyDict>,
        map_size: Option<u64>,
        busy_timeout_ms: u64,
        clock: Option<Py<PyAny>>,
        on_alert: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let mut options = Options::default();
        options.create = create;
        options.read_only = read_only;
        options.limits = limits.map(Into::into);
        options.policy = policy.map(|policy| policy.policy(py)).transpose()?;
        options.map_size = map_size;
        options.busy_timeout_ms = busy_timeout_ms;
        options.clock = clock.map(|clock| clock_of(py, clock)).transpose()?;
        options.on_alert = on_alert.map(listener);
        let store = call(py, || match path {
            Some(path) => EffectStore::open(path, options),
            None => EffectStore::in_memory(options),
        })?;
        Ok(Handle { store: RwLock::new(Some(store)) })
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        call(py, || {
            let held = self.store.write().unwrap_or_else(PoisonError::into_inner).take();
            held.map_or(Ok(()), |store| store.close())
        })
    }

    fn path(&self, py: Python<'_>) -> PyResult<String> {
        call(py, || Ok(self.store()?.path().to_string_lossy().into_owned()))
    }

    fn store_id(&self, py: Python<'_>) -> PyResult<[u8; 16]> {
        call(py, || self.store()?.store_id())
    }

    fn incarnation(&self, py: Python<'_>) -> PyResult<u64> {
        call(py, || self.store()?.incarnation())
    }

    fn limits(&self, py: Python<'_>) -> PyResult<LimitsDict> {
        call(py, || self.store()?.limits()).map(Into::into)
    }

    fn policy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let policy = call(py, || self.store()?.policy())?;
        policy_out(py, &policy)
    }

    fn now_ms(&self, py: Python<'_>) -> PyResult<u64> {
        call(py, || Ok(self.store()?.now_ms()))
    }

    #[pyo3(signature = (by, limits, policy))]
    fn configure(
        &self,
        py: Python<'_>,
        by: &str,
        limits: Option<LimitsDict>,
        policy: Option<PolicyDict>,
    ) -> PyResult<()> {
        let policy = policy.map(|policy| policy.policy(py)).transpose()?;
        call(py, || self.store()?.configure(by, limits.map(Into::into), policy))
    }

    fn freeze(&self, py: Python<'_>, by: &str, reason: &str) -> PyResult<()> {
        call(py, || self.store()?.freeze(by, reason))
    }

    fn unfreeze(&self, py: Python<'_>, by: &str) -> PyResult<()> {
        call(py, || self.store()?.unfreeze(by))
    }

    fn tick(&self, py: Python<'_>) -> PyResult<u64> {
        call(py, || self.store()?.tick())
    }
}

/// Tells the caller's function of an alert: its severity, id, text and what it is about.
fn listener(told: Py<PyAny>) -> OnAlert {
    Arc::new(move |alert| {
        // Without an interpreter there is no log to write to; the alert is durable in any case.
        let _ = Python::try_attach(|py| {
            let severity = severity_word(alert.severity);
            told.call1(py, (severity, alert.id.0, &alert.text, alert.reference))
                .map_err(|error| error.write_unraisable(py, Some(told.bind(py))))
                .map(drop)
        });
    })
}

/// The core's clocks that are in use, by the address of the callable that each one holds: a callable
/// gets the same one at every open.
static CLOCKS: Mutex<Vec<(usize, Weak<ClockFn>)>> = Mutex::new(Vec::new());
type ClockFn = dyn Fn() -> u64 + Send + Sync;

/// The core's clock over the caller's, which is asked once here so that a broken one is found now.
///
/// The core cannot stop for an exception; a clock that fails later is reported to the interpreter's
/// hook for such errors and stands still.
fn clock_of(py: Python<'_>, clock: Py<PyAny>) -> PyResult<Clock> {
    let first: u64 = clock.call0(py)?.extract(py)?;
    let mut known = CLOCKS.lock().unwrap_or_else(PoisonError::into_inner);
    known.retain(|(_, made)| made.strong_count() > 0);
    let address = clock.as_ptr() as usize;
    if let Some(made) = known.iter().find(|(at, _)| *at == address).and_then(|(_, m)| m.upgrade()) {
        return Ok(made);
    }
    let last = AtomicU64::new(first);
    let made: Clock = Arc::new(move || {
        let read = Python::try_attach(|py| {
            clock.call0(py).and_then(|now| now.extract::<u64>(py)).map_err(|error| {
                error.write_unraisable(py, Some(clock.bind(py)));
            })
        });
        if let Some(Ok(now)) = read {
            last.store(now, Ordering::Relaxed);
        }
        last.load(Ordering::Relaxed)
    });
    known.push((address, Arc::downgrade(&made)));
    Ok(made)
}

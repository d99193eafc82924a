//! Metrics, as dicts of dicts.

use effectstore::model::{Metrics, Spread};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::store::Handle;
use crate::wait::call;

fn spread<'py>(py: Python<'py>, spread: &Spread) -> PyResult<Bound<'py, PyDict>> {
    let found = PyDict::new(py);
    found.set_item("count", spread.count)?;
    found.set_item("mean", spread.mean)?;
    found.set_item("median", spread.median)?;
    found.set_item("p95", spread.p95)?;
    found.set_item("max", spread.max)?;
    Ok(found)
}

fn storms<'py>(py: Python<'py>, metrics: &Metrics) -> PyResult<Bound<'py, PyDict>> {
    let (found, storms) = (PyDict::new(py), &metrics.storms);
    found.set_item("registered", storms.registered)?;
    found.set_item("committed", storms.committed)?;
    found.set_item("doomed", storms.doomed)?;
    found.set_item("void", storms.void)?;
    found.set_item("commit_efficiency", storms.commit_efficiency)?;
    found.set_item("cascade", spread(py, &storms.cascade)?)?;
    found.set_item("secondary_ratio", storms.secondary_ratio)?;
    found.set_item("wasted_cost", storms.wasted_cost)?;
    found.set_item("commit_lag_ms", spread(py, &storms.commit_lag_ms)?)?;
    found.set_item("repeats", storms.repeats)?;
    found.set_item("refused", storms.refused)?;
    Ok(found)
}

fn rollbacks<'py>(py: Python<'py>, metrics: &Metrics) -> PyResult<Bound<'py, PyDict>> {
    let (found, measured) = (PyDict::new(py), &metrics.rollbacks);
    let causes = PyDict::new(py);
    for (kind, count) in &measured.root_causes {
        causes.set_item(kind.name(), count)?;
    }
    found.set_item("count", measured.count)?;
    found.set_item("per_month", measured.per_month)?;
    found.set_item("governed", measured.governed)?;
    found.set_item("open", measured.open)?;
    found.set_item("awaiting_approval", measured.awaiting_approval)?;
    found.set_item("in_review", measured.in_review)?;
    found.set_item("time_to_rollback_ms", spread(py, &measured.time_to_rollback_ms)?)?;
    found.set_item("within_an_hour", measured.within_an_hour)?;
    found.set_item("attempts", measured.attempts)?;
    found.set_item("failed_attempts", measured.failed_attempts)?;
    found.set_item("root_causes", causes)?;
    found.set_item("repeated_causes", measured.repeated_causes)?;
    Ok(found)
}

fn storage<'py>(py: Python<'py>, metrics: &Metrics) -> PyResult<Bound<'py, PyDict>> {
    let (found, storage) = (PyDict::new(py), &metrics.storage);
    found.set_item("records", storage.records)?;
    found.set_item("segments", storage.segments)?;
    found.set_item("live_effects", storage.live_effects)?;
    found.set_item("effects_in_memory", storage.effects_in_memory)?;
    found.set_item("keys_in_memory", storage.keys_in_memory)?;
    found.set_item("branches_in_memory", storage.branches_in_memory)?;
    found.set_item("open_alerts", storage.open_alerts)?;
    found.set_item("file_bytes", storage.file_bytes)?;
    found.set_item("used_bytes", storage.used_bytes)?;
    found.set_item("map_bytes", storage.map_bytes)?;
    found.set_item("readers", storage.readers)?;
    found.set_item("oldest_reader_transactions", storage.oldest_reader_transactions)?;
    Ok(found)
}

#[pymethods]
impl Handle {
    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let metrics = call(py, || self.store()?.metrics())?;
        let found = PyDict::new(py);
        found.set_item("from_record", metrics.from_record)?;
        found.set_item("since_ms", metrics.since_ms)?;
        found.set_item("until_ms", metrics.until_ms)?;
        found.set_item("storms", storms(py, &metrics)?)?;
        found.set_item("rollbacks", rollbacks(py, &metrics)?)?;
        found.set_item("storage", storage(py, &metrics)?)?;
        Ok(found)
    }
}

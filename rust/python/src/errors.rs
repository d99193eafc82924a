//! The one error map. Classes live in `effectstore._errors`, which knows them by code; this side
//! hands over code, message, place in the batch and attributes.

use effectstore::Error;
use effectstore::model::{Name, Refusal};
use effectstore::storage::StorageError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

use crate::convert::{ids, token_out};
use crate::fence::DecisionInfo;

static FROM_CORE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// The Python exception of an error of the core.
pub(crate) fn raise(py: Python<'_>, error: &Error) -> PyErr {
    let fields = PyDict::new(py);
    let (filled, index) = match error {
        Error::Refused { refusal, index } => (refused(&fields, refusal), *index),
        Error::Storage(storage) => (stored(&fields, storage), None),
        _ => (Ok(()), None),
    };
    match filled {
        Ok(()) => build(py, error.code(), &error.to_string(), index, &fields),
        Err(failed) => failed,
    }
}

/// The exception for an argument that the core would not understand.
pub(crate) fn bad_option(py: Python<'_>, option: &str, message: &str) -> PyErr {
    let fields = PyDict::new(py);
    match fields.set_item("option", option) {
        Ok(()) => build(py, "options", &format!("{option}: {message}"), None, &fields),
        Err(failed) => failed,
    }
}

fn build(
    py: Python<'_>,
    code: &str,
    message: &str,
    index: Option<usize>,
    fields: &Bound<'_, PyDict>,
) -> PyErr {
    FROM_CORE
        .import(py, "effectstore._errors", "from_core")
        .and_then(|make| make.call1((code, message, index, fields)))
        .map_or_else(|failed| failed, PyErr::from_value)
}

fn refused(fields: &Bound<'_, PyDict>, refusal: &Refusal) -> PyResult<()> {
    match refusal {
        Refusal::FenceClosure { decision, rollback } => {
            fields.set_item("decision", DecisionInfo::from(decision.as_ref().clone()))?;
            fields.set_item("rollback", rollback.map(|id| id.0))
        }
        Refusal::ReconcileConflict { path } => fields.set_item("path", ids(path)),
        Refusal::StaleToken { branch, held, current } => {
            fields.set_item("branch", branch)?;
            fields.set_item("held", held.map(token_out))?;
            fields.set_item("current", current.map(token_out))
        }
        Refusal::DoomedBranch { branch, cause } | Refusal::BranchClosed { branch, cause } => {
            fields.set_item("branch", branch)?;
            fields.set_item("cause", cause.map(|id| id.0))
        }
        Refusal::DoomedDependency { dependency, key } => {
            fields.set_item("dependency", dependency.0)?;
            fields.set_item("key", key.as_ref().map(|key| &key.0))
        }
        Refusal::BranchExists { branch } => fields.set_item("branch", branch),
        Refusal::InverseRequired { tool } | Refusal::IrreversibleBeforeFence { tool } => {
            fields.set_item("tool", tool)
        }
        Refusal::CompensationScope { branch, rollback } => {
            fields.set_item("branch", branch)?;
            fields.set_item("rollback", rollback.0)
        }
        Refusal::UncommittedKey { key, writers } | Refusal::KeyBusy { key, writers } => {
            fields.set_item("key", &key.0)?;
            fields.set_item("writers", ids(writers))
        }
        Refusal::DirtyKey { key, writers, rollback } => {
            fields.set_item("key", &key.0)?;
            fields.set_item("writers", ids(writers))?;
            fields.set_item("rollback", rollback.map(|id| id.0))
        }
        other => refused_more(fields, other),
    }
}

fn refused_more(fields: &Bound<'_, PyDict>, refusal: &Refusal) -> PyResult<()> {
    match refusal {
        Refusal::IdempotencyConflict { effect, differs } => {
            fields.set_item("effect", effect.0)?;
            fields.set_item("differs", differs)
        }
        Refusal::AlreadySettled { reference, state } => {
            fields.set_item("ref", reference)?;
            fields.set_item("state", state)
        }
        Refusal::HeldByRollback { effect, state, rollback } => {
            fields.set_item("ref", effect.0)?;
            fields.set_item("state", state)?;
            fields.set_item("rollback", rollback.0)
        }
        Refusal::ApprovalRequired { tool, approval } => {
            fields.set_item("tool", tool)?;
            fields.set_item("approval", approval.0)
        }
        Refusal::ApprovalClosed { approval, state, successor } => {
            fields.set_item("approval", approval.0)?;
            fields.set_item("state", state)?;
            fields.set_item("successor", successor.map(|id| id.0))
        }
        Refusal::SeparationOfDuties { approval, by } | Refusal::ReasonRequired { approval, by } => {
            fields.set_item("approval", approval.0)?;
            fields.set_item("by", by)
        }
        Refusal::ArtifactDuties { artifact, by }
        | Refusal::ArtifactReasonRequired { artifact, by } => {
            fields.set_item("artifact", artifact.0)?;
            fields.set_item("by", by)
        }
        Refusal::LimitExceeded { limit, value, allowed, wait_for } => {
            fields.set_item("limit", limit)?;
            fields.set_item("value", value)?;
            fields.set_item("allowed", allowed)?;
            fields.set_item("wait_for", ids(wait_for))
        }
        Refusal::Frozen { by, reason } => {
            fields.set_item("by", by)?;
            fields.set_item("reason", reason)
        }
        Refusal::LeaseLost { step, holder } => {
            fields.set_item("step", step.0)?;
            fields.set_item("holder", holder.as_deref())
        }
        Refusal::NotFound { name, .. } => name_out(fields, "ref", name),
        Refusal::CommitReserved { target } => name_out(fields, "target", target),
        Refusal::Options { option, .. } => fields.set_item("option", option),
        Refusal::ArtifactState { artifact, state, .. } => {
            fields.set_item("artifact", artifact.0)?;
            fields.set_item("state", state)
        }
        Refusal::ContentMismatch { artifact } => fields.set_item("artifact", artifact.0),
        _ => Ok(()),
    }
}

fn name_out(fields: &Bound<'_, PyDict>, field: &str, name: &Name) -> PyResult<()> {
    match name {
        Name::Id(id) => fields.set_item(field, id),
        Name::Text(text) => fields.set_item(field, text),
    }
}

fn stored(fields: &Bound<'_, PyDict>, error: &StorageError) -> PyResult<()> {
    match error {
        StorageError::StoreBusy { pid, held_for_ms, .. } => {
            let held_for = std::time::Duration::from_millis(*held_for_ms).as_secs_f64();
            fields.set_item("pid", pid)?;
            fields.set_item("held_for", held_for)
        }
        StorageError::Corrupted { place } => fields.set_item("where", place),
        StorageError::Poisoned { cause } => fields.set_item("cause", cause),
        StorageError::Options { option, .. } => fields.set_item("option", option),
        _ => Ok(()),
    }
}

//! Artifacts and their compensations.

use effectstore::model::{self, ArtifactId, ArtifactMove};
use effectstore::store::NewArtifact;
use pyo3::prelude::*;

use crate::convert::{CLASSES, choice, word};
use crate::errors::bad_option;
use crate::store::Handle;
use crate::wait::call;

/// Type, name, content, where it lies elsewhere, SHA-256, reversibility, agent.
type NewTuple =
    (String, String, Option<Vec<u8>>, Option<String>, Option<[u8; 32]>, String, Option<String>);
/// Id, type, name, where its content lies elsewhere, SHA-256, size if held here, reversibility,
/// agent, state.
type ArtifactTuple = (
    u64,
    String,
    String,
    Option<String>,
    [u8; 32],
    Option<u64>,
    &'static str,
    Option<String>,
    &'static str,
);
/// Record, time in milliseconds, state, who, why.
type MoveTuple = (u64, u64, &'static str, Option<String>, Option<String>);
/// Reason, run, who.
type FailureTuple = (String, Option<String>, String);
/// Run, rollback, approver, outcome: completed, kind, attempts, who, when in milliseconds.
type RunTuple = (u64, u64, Option<String>, Option<OutcomeTuple>);
type OutcomeTuple = (bool, Option<&'static str>, u32, Option<String>, u64);

/// An artifact with its compensation.
#[pyclass(frozen, get_all, module = "effectstore._effectstore")]
pub(crate) struct ArtifactPairInfo {
    primary: ArtifactTuple,
    compensation: ArtifactTuple,
    created_by: String,
    moves: Vec<MoveTuple>,
    failure: Option<FailureTuple>,
    run: Option<RunTuple>,
}

fn artifact_out(artifact: model::Artifact) -> ArtifactTuple {
    let model::Artifact { id, spec, state, .. } = artifact;
    (
        id.0,
        spec.artifact_type,
        spec.name,
        spec.content_ref,
        spec.sha256,
        spec.content.map(|held| held.length),
        word(spec.class, CLASSES),
        spec.agent,
        state.name(),
    )
}

fn move_out(moved: ArtifactMove) -> MoveTuple {
    (moved.record, moved.time_ms, moved.state.name(), moved.by, moved.reason)
}

fn run_out(run: model::ArtifactRun) -> RunTuple {
    let outcome = run.outcome.map(|outcome| {
        let kind = outcome.kind.map(model::FailureKind::name);
        (outcome.completed, kind, outcome.attempts, outcome.by, outcome.ended_ms)
    });
    (run.id.0, run.rollback.0, run.approved_by, outcome)
}

impl From<model::ArtifactPair> for ArtifactPairInfo {
    fn from(pair: model::ArtifactPair) -> Self {
        ArtifactPairInfo {
            primary: artifact_out(pair.primary),
            compensation: artifact_out(pair.compensation),
            created_by: pair.created_by,
            moves: pair.moves.into_iter().map(move_out).collect(),
            failure: pair.failure.map(|failure| (failure.reason, failure.run_id, failure.by)),
            run: pair.run.map(run_out),
        }
    }
}

fn new_in(py: Python<'_>, raw: NewTuple) -> PyResult<NewArtifact> {
    let (artifact_type, name, content, content_ref, sha256, reversibility, agent) = raw;
    let mut made = match (content, content_ref, sha256) {
        (Some(bytes), None, hash) => {
            if hash.is_some_and(|hash| effectstore::store::sha256(&bytes) != hash) {
                let message = "the content has another SHA-256";
                return Err(bad_option(py, "content_hash", message));
            }
            NewArtifact::held(artifact_type, name, bytes)
        }
        (None, Some(place), Some(sha256)) => {
            NewArtifact::elsewhere(artifact_type, name, place, sha256)
        }
        _ => {
            let message = "give the content itself, or content_ref with content_hash";
            return Err(bad_option(py, "content", message));
        }
    };
    made.class = choice(py, "reversibility", &reversibility, CLASSES)?;
    made.agent = agent;
    Ok(made)
}

#[pymethods]
impl Handle {
    #[pyo3(signature = (primary, compensation, by, idempotency_key))]
    fn create_artifacts(
        &self,
        py: Python<'_>,
        primary: NewTuple,
        compensation: NewTuple,
        by: &str,
        idempotency_key: Option<Vec<u8>>,
    ) -> PyResult<ArtifactPairInfo> {
        let (primary, compensation) = (new_in(py, primary)?, new_in(py, compensation)?);
        let made = call(py, || {
            let store = self.store()?;
            let artifacts = store.artifacts();
            match idempotency_key {
                Some(key) => artifacts.create_once(primary, compensation, by, &key),
                None => artifacts.create(primary, compensation, by),
            }
        });
        made.map(Into::into)
    }

    /// Brings a pair on by the verb of this name.
    #[pyo3(signature = (verb, id, by, reason))]
    fn move_artifact(
        &self,
        py: Python<'_>,
        verb: &str,
        id: u64,
        by: &str,
        reason: Option<&str>,
    ) -> PyResult<ArtifactPairInfo> {
        let id = ArtifactId(id);
        let moved = call(py, || {
            let store = self.store()?;
            let pairs = store.artifacts();
            Ok(match verb {
                "submit" => Some(pairs.submit(id, by)?),
                "approve" => Some(pairs.approve(id, by, reason)?),
                "reject" => Some(pairs.reject(id, by, reason.unwrap_or_default())?),
                "promote" => Some(pairs.promote(id, by)?),
                "start" => Some(pairs.start(id, by)?),
                "complete" => Some(pairs.complete(id, by)?),
                _ => None,
            })
        })?;
        let unknown = || bad_option(py, "verb", &format!("{verb:?} is no verb of artifacts"));
        moved.map(Into::into).ok_or_else(unknown)
    }

    #[pyo3(signature = (id, by, reason, run_id))]
    fn fail_artifact(
        &self,
        py: Python<'_>,
        id: u64,
        by: &str,
        reason: &str,
        run_id: Option<&str>,
    ) -> PyResult<ArtifactPairInfo> {
        call(py, || self.store()?.artifacts().fail(ArtifactId(id), by, reason, run_id))
            .map(Into::into)
    }

    fn artifact(&self, py: Python<'_>, id: u64) -> PyResult<ArtifactPairInfo> {
        call(py, || self.store()?.artifacts().get(ArtifactId(id))).map(Into::into)
    }

    fn artifacts(
        &self,
        py: Python<'_>,
        since: u64,
        limit: usize,
    ) -> PyResult<Vec<ArtifactPairInfo>> {
        let found = call(py, || self.store()?.artifacts().list(since, limit))?;
        Ok(found.into_iter().map(Into::into).collect())
    }

    fn artifact_content(&self, py: Python<'_>, id: u64) -> PyResult<Vec<u8>> {
        call(py, || self.store()?.artifacts().content(ArtifactId(id)))
    }

    fn check_content(&self, py: Python<'_>, id: u64, data: &[u8]) -> PyResult<()> {
        call(py, || self.store()?.artifacts().check(ArtifactId(id), data))
    }
}

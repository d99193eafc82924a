//! Decisions, fences, aborts and reconciliations.

use effectstore::model::{self, DecisionKind, FenceId, FenceStatus};
use pyo3::prelude::*;

use crate::convert::{
    BlockerTuple, ESCALATES, ON_CONFLICTS, TargetPair, TokenPair, blockers_out, choice, ids,
    rollback_ids, target_in, token_in,
};
use crate::store::Handle;
use crate::wait::{Patience, ask, call};

/// What a fence would decide.
#[pyclass(frozen, get_all, module = "effectstore._effectstore")]
pub(crate) struct DecisionInfo {
    target: u64,
    kind: &'static str,
    closure: Vec<u64>,
    blockers: Vec<BlockerTuple>,
    cause: Option<u64>,
    expired: Vec<u64>,
}

impl From<model::Decision> for DecisionInfo {
    fn from(decision: model::Decision) -> Self {
        DecisionInfo {
            target: decision.target,
            kind: match decision.kind {
                DecisionKind::Commit => "commit",
                DecisionKind::Abort => "abort",
                DecisionKind::Escalate => "escalate",
            },
            closure: ids(&decision.closure),
            blockers: blockers_out(decision.blockers),
            cause: decision.cause.map(|id| id.0),
            expired: ids(&decision.expired),
        }
    }
}

/// A fence.
#[pyclass(frozen, get_all, module = "effectstore._effectstore")]
pub(crate) struct FenceInfo {
    id: Option<u64>,
    status: &'static str,
    committed: Vec<u64>,
    blockers: Vec<BlockerTuple>,
    by: Option<String>,
}

impl From<model::FenceInfo> for FenceInfo {
    fn from(info: model::FenceInfo) -> Self {
        FenceInfo {
            id: info.id.map(|id| id.0),
            status: match info.status {
                FenceStatus::Committed => "committed",
                FenceStatus::Waiting => "waiting",
                FenceStatus::Aborted => "aborted",
            },
            committed: ids(&info.committed),
            blockers: blockers_out(info.blockers),
            by: info.by,
        }
    }
}

/// What one decision settled.
#[pyclass(frozen, get_all, module = "effectstore._effectstore")]
pub(crate) struct ReconciliationInfo {
    fence: Option<Py<FenceInfo>>,
    committed: Vec<u64>,
    doomed: Vec<u64>,
    cascaded: Vec<u64>,
    kept: Vec<u64>,
    rollbacks: Vec<u64>,
    rollback: Option<u64>,
}

impl ReconciliationInfo {
    pub(crate) fn of(py: Python<'_>, settled: model::Reconciliation) -> PyResult<Self> {
        Ok(ReconciliationInfo {
            fence: settled.fence.map(|fence| Py::new(py, FenceInfo::from(fence))).transpose()?,
            committed: ids(&settled.committed),
            doomed: ids(&settled.doomed),
            cascaded: ids(&settled.cascaded),
            kept: ids(&settled.kept),
            rollbacks: rollback_ids(&settled.rollbacks),
            rollback: settled.rollback.map(|id| id.0),
        })
    }
}

#[pymethods]
impl Handle {
    fn decide(&self, py: Python<'_>, target: TargetPair) -> PyResult<DecisionInfo> {
        call(py, || self.store()?.decide(target_in(target))).map(Into::into)
    }

    fn commit(
        &self,
        py: Python<'_>,
        target: TargetPair,
        token: TokenPair,
        escalate: &str,
        wait_ms: u64,
    ) -> PyResult<FenceInfo> {
        let escalate = choice(py, "escalate", escalate, ESCALATES)?;
        let patience = Patience::of(wait_ms);
        let (target, token) = (target_in(target), token_in(token));
        let fence =
            ask(py, &patience, |_| self.store()?.commit(target, token, escalate, 0), |_| true)?;
        // The intent is durable now; what is left is a wait for it.
        match (fence.status, fence.id) {
            (FenceStatus::Waiting, Some(id)) if patience.left_ms() > 0 => {
                self.settled(py, id, &patience)
            }
            _ => Ok(fence),
        }
        .map(Into::into)
    }

    fn fence(&self, py: Python<'_>, id: u64) -> PyResult<FenceInfo> {
        call(py, || self.store()?.fence(FenceId(id))).map(Into::into)
    }

    fn wait_fence(&self, py: Python<'_>, id: u64, wait_ms: u64) -> PyResult<FenceInfo> {
        self.settled(py, FenceId(id), &Patience::of(wait_ms)).map(Into::into)
    }

    fn fences(&self, py: Python<'_>, since: u64, limit: usize) -> PyResult<Vec<FenceInfo>> {
        let found = call(py, || self.store()?.fences(since, limit))?;
        Ok(found.into_iter().map(Into::into).collect())
    }

    #[pyo3(signature = (target, token, reason, by))]
    fn abort(
        &self,
        py: Python<'_>,
        target: TargetPair,
        token: TokenPair,
        reason: &str,
        by: Option<&str>,
    ) -> PyResult<ReconciliationInfo> {
        let settled =
            call(py, || self.store()?.abort(target_in(target), token_in(token), reason, by))?;
        ReconciliationInfo::of(py, settled)
    }

    #[pyo3(signature = (commit, abort, closure, by, reason, on_conflict, escalate))]
    #[allow(clippy::too_many_arguments)] // One for each thing that the authority says.
    fn reconcile(
        &self,
        py: Python<'_>,
        commit: Vec<TargetPair>,
        abort: Vec<TargetPair>,
        closure: bool,
        by: Option<&str>,
        reason: Option<&str>,
        on_conflict: &str,
        escalate: &str,
    ) -> PyResult<ReconciliationInfo> {
        let commit = commit.into_iter().map(target_in).collect();
        let abort = abort.into_iter().map(target_in).collect();
        let on_conflict = choice(py, "on_conflict", on_conflict, ON_CONFLICTS)?;
        let escalate = choice(py, "escalate", escalate, ESCALATES)?;
        let settled = call(py, || {
            self.store()?.reconcile(commit, abort, closure, by, reason, on_conflict, escalate)
        })?;
        ReconciliationInfo::of(py, settled)
    }
}

impl Handle {
    fn settled(
        &self,
        py: Python<'_>,
        id: FenceId,
        patience: &Patience,
    ) -> PyResult<model::FenceInfo> {
        ask(
            py,
            patience,
            |slice_ms| self.store()?.wait_fence(id, slice_ms),
            |fence| fence.status != FenceStatus::Waiting,
        )
    }
}

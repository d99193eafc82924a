//! Approvals and alerts.

use effectstore::model::{
    self, AlertId, ApprovalId, ApprovalState, Ask, BranchId, RollbackId, Severity, Subject,
};
use effectstore::store::Payloads;
use pyo3::prelude::*;

use crate::convert::{TokenPair, token_in, word};
use crate::store::Handle;
use crate::wait::call;

const STATES: &[(&str, ApprovalState)] = &[
    ("pending", ApprovalState::Pending),
    ("approved", ApprovalState::Approved),
    ("denied", ApprovalState::Denied),
    ("stale", ApprovalState::Stale),
];

/// An approval.
#[pyclass(frozen, get_all, module = "effectstore._effectstore")]
pub(crate) struct ApprovalInfo {
    id: u64,
    kind: &'static str,
    subject: u64,
    tool: Option<String>,
    digest: [u8; 32],
    reason_required: bool,
    requested_by: String,
    reason: String,
    state: &'static str,
    answered_by: Option<String>,
    answer_reason: Option<String>,
}

impl From<model::ApprovalInfo> for ApprovalInfo {
    fn from(info: model::ApprovalInfo) -> Self {
        let (kind, subject, tool) = match info.subject {
            Subject::Rollback(rollback) => ("rollback", rollback.0, None),
            Subject::Effect(effect) => ("effect", effect.0, None),
            Subject::Early { branch, tool, .. } => ("effect", branch.0, Some(tool)),
        };
        ApprovalInfo {
            id: info.id.0,
            kind,
            subject,
            tool,
            digest: info.digest,
            reason_required: info.reason_required,
            requested_by: info.requested_by,
            reason: info.reason,
            state: word(info.state, STATES),
            answered_by: info.answered_by,
            answer_reason: info.answer_reason,
        }
    }
}

/// The name of a severity.
pub(crate) fn severity_word(severity: Severity) -> &'static str {
    match severity {
        Severity::Warning => "warning",
        Severity::Critical => "critical",
    }
}

/// An alert.
#[pyclass(frozen, get_all, module = "effectstore._effectstore")]
pub(crate) struct AlertInfo {
    id: u64,
    severity: &'static str,
    text: String,
    reference: u64,
    acknowledged_by: Option<String>,
}

impl From<model::AlertInfo> for AlertInfo {
    fn from(info: model::AlertInfo) -> Self {
        AlertInfo {
            id: info.id.0,
            severity: severity_word(info.severity),
            text: info.text,
            reference: info.reference,
            acknowledged_by: info.acknowledged_by,
        }
    }
}

#[pymethods]
impl Handle {
    fn ask_rollback(
        &self,
        py: Python<'_>,
        rollback: u64,
        by: &str,
        reason: &str,
    ) -> PyResult<ApprovalInfo> {
        let wanted = Ask::Rollback(RollbackId(rollback));
        call(py, || self.store()?.ask(wanted, by, reason, Payloads::default())).map(Into::into)
    }

    #[pyo3(signature = (branch, token, tool, args, idempotency_key, by, reason))]
    #[allow(clippy::too_many_arguments)] // One for each part of the call that is asked for.
    fn ask_early(
        &self,
        py: Python<'_>,
        branch: u64,
        token: TokenPair,
        tool: String,
        args: Vec<u8>,
        idempotency_key: Option<Vec<u8>>,
        by: &str,
        reason: &str,
    ) -> PyResult<ApprovalInfo> {
        let mut payloads = Payloads::default();
        let wanted = Ask::Early {
            branch: BranchId(branch),
            token: token_in(token),
            tool,
            args: payloads.put(args),
            idempotency_key,
        };
        call(py, || self.store()?.ask(wanted, by, reason, payloads)).map(Into::into)
    }

    #[pyo3(signature = (approval, approve, by, reason))]
    fn answer(
        &self,
        py: Python<'_>,
        approval: u64,
        approve: bool,
        by: &str,
        reason: Option<&str>,
    ) -> PyResult<ApprovalInfo> {
        call(py, || self.store()?.answer(ApprovalId(approval), approve, by, reason)).map(Into::into)
    }

    fn approval(&self, py: Python<'_>, id: u64) -> PyResult<ApprovalInfo> {
        call(py, || self.store()?.approval(ApprovalId(id))).map(Into::into)
    }

    fn approvals(&self, py: Python<'_>, since: u64, limit: usize) -> PyResult<Vec<ApprovalInfo>> {
        let found = call(py, || self.store()?.approvals(since, limit))?;
        Ok(found.into_iter().map(Into::into).collect())
    }

    fn alerts(&self, py: Python<'_>, since: u64, limit: usize) -> PyResult<Vec<AlertInfo>> {
        let found = call(py, || self.store()?.alerts(since, limit))?;
        Ok(found.into_iter().map(Into::into).collect())
    }

    fn acknowledge(&self, py: Python<'_>, alert: u64, by: &str) -> PyResult<AlertInfo> {
        call(py, || self.store()?.acknowledge(AlertId(alert), by)).map(Into::into)
    }
}

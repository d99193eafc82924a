//! BREAK and the inboxes of agents.

use effectstore::model::{self, BranchId, BreakSeverity, NoticeId};
use effectstore::store::BreakSignal;
use pyo3::prelude::*;

use crate::convert::{TokenPair, choice, token_in};
use crate::fence::ReconciliationInfo;
use crate::store::Handle;
use crate::wait::call;

const SEVERITIES: &[(&str, BreakSeverity)] = &[
    ("transient", BreakSeverity::Transient),
    ("permanent", BreakSeverity::Permanent),
    ("catastrophic", BreakSeverity::Catastrophic),
];

/// A notice to one agent.
#[pyclass(frozen, get_all, module = "effectstore._effectstore")]
pub(crate) struct NoticeInfo {
    id: u64,
    agent: String,
    signal: u64,
    branch: String,
    severity: &'static str,
    reason: String,
    recoverable: bool,
    ack_by_ms: u64,
    acknowledged: bool,
}

impl From<model::NoticeInfo> for NoticeInfo {
    fn from(info: model::NoticeInfo) -> Self {
        NoticeInfo {
            id: info.id.0,
            agent: info.agent,
            signal: info.signal.0,
            branch: info.branch_name,
            severity: info.severity.name(),
            reason: info.reason,
            recoverable: info.recoverable,
            ack_by_ms: info.ack_by_ms,
            acknowledged: info.acknowledged,
        }
    }
}

#[pymethods]
impl Handle {
    #[pyo3(signature = (branch, token, severity, reason, recoverable, upstream, ack_within_ms))]
    #[allow(clippy::too_many_arguments)] // One for each thing that the signal says.
    fn signal_break(
        &self,
        py: Python<'_>,
        branch: u64,
        token: Option<TokenPair>,
        severity: &str,
        reason: String,
        recoverable: bool,
        upstream: Vec<String>,
        ack_within_ms: u64,
    ) -> PyResult<ReconciliationInfo> {
        let signal = BreakSignal {
            token: token.map(token_in),
            severity: choice(py, "severity", severity, SEVERITIES)?,
            reason,
            recoverable,
            upstream,
            ack_within_ms,
        };
        let settled = call(py, || self.store()?.signal_break(BranchId(branch), signal))?;
        ReconciliationInfo::of(py, settled)
    }

    fn notices(
        &self,
        py: Python<'_>,
        agent: &str,
        since: u64,
        limit: usize,
    ) -> PyResult<Vec<NoticeInfo>> {
        let found = call(py, || self.store()?.notices(agent, since, limit))?;
        Ok(found.into_iter().map(Into::into).collect())
    }

    fn notice(&self, py: Python<'_>, id: u64) -> PyResult<NoticeInfo> {
        call(py, || self.store()?.notice(NoticeId(id))).map(Into::into)
    }

    fn ack_notice(&self, py: Python<'_>, id: u64, agent: &str) -> PyResult<NoticeInfo> {
        call(py, || self.store()?.ack_notice(NoticeId(id), agent)).map(Into::into)
    }
}

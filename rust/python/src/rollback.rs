//! Rollbacks: plans, reports, and what a person does about a step.

use effectstore::model::{self, EffectId, RollbackId, RollbackState, Trigger};
use pyo3::prelude::*;

use crate::convert::{CLASSES, ReadPair, approval_ids, ids, reads_in, word};
use crate::store::Handle;
use crate::wait::call;

/// Effect, tool, agent, kind, error type, message, attempts, writer.
type FailureTuple = (u64, String, String, &'static str, String, String, u32, Option<u64>);
/// Effect, tool, agent, reversibility, deadline in milliseconds.
type PlannedTuple = (u64, String, String, &'static str, Option<u64>);

const STATES: &[(&str, RollbackState)] = &[
    ("awaiting_approval", RollbackState::AwaitingApproval),
    ("due", RollbackState::Due),
    ("running", RollbackState::Running),
    ("blocked", RollbackState::Blocked),
    ("in_review", RollbackState::InReview),
    ("closed", RollbackState::Closed),
];
const TRIGGERS: &[(&str, Trigger)] = &[
    ("automatic", Trigger::Automatic),
    ("agent", Trigger::Agent),
    ("judge", Trigger::Judge),
    ("human", Trigger::Human),
];

/// What became of a rollback's members.
#[pyclass(frozen, get_all, module = "effectstore._effectstore")]
#[derive(Clone)]
pub(crate) struct ReportInfo {
    completed: Vec<u64>,
    unsettled: Vec<u64>,
    failed: Vec<FailureTuple>,
    blocked: Vec<(u64, Vec<u64>)>,
    pending: Vec<u64>,
    discarded: Vec<u64>,
    clean: bool,
    downstream_confirmed: bool,
}

impl From<model::Report> for ReportInfo {
    fn from(report: model::Report) -> Self {
        let clean = report.clean();
        ReportInfo {
            completed: ids(&report.completed),
            unsettled: ids(&report.unsettled),
            failed: report.failed.into_iter().map(failure_out).collect(),
            blocked: report
                .blocked
                .into_iter()
                .map(|blocked| (blocked.effect.0, ids(&blocked.by)))
                .collect(),
            pending: ids(&report.pending),
            discarded: ids(&report.discarded),
            clean,
            downstream_confirmed: report.downstream_confirmed,
        }
    }
}

fn failure_out(failure: model::Failure) -> FailureTuple {
    (
        failure.effect.0,
        failure.tool,
        failure.agent,
        failure.kind.name(),
        failure.problem.error_type,
        failure.problem.message,
        failure.attempts,
        failure.writer.map(|id| id.0),
    )
}

/// A rollback.
#[pyclass(frozen, get_all, module = "effectstore._effectstore")]
pub(crate) struct RollbackInfo {
    id: u64,
    state: &'static str,
    effects: Vec<u64>,
    initiated_by: Option<String>,
    trigger: &'static str,
    reason: String,
    approvals: Vec<u64>,
    report: ReportInfo,
}

impl From<model::RollbackInfo> for RollbackInfo {
    fn from(info: model::RollbackInfo) -> Self {
        RollbackInfo {
            id: info.id.0,
            state: word(info.state, STATES),
            effects: ids(&info.effects),
            initiated_by: info.initiated_by,
            trigger: word(info.trigger, TRIGGERS),
            reason: info.reason,
            approvals: approval_ids(&info.approvals),
            report: info.report.into(),
        }
    }
}

#[pymethods]
impl Handle {
    fn rollback(&self, py: Python<'_>, id: u64) -> PyResult<RollbackInfo> {
        call(py, || self.store()?.rollback(RollbackId(id))).map(Into::into)
    }

    fn rollbacks(&self, py: Python<'_>, since: u64, limit: usize) -> PyResult<Vec<RollbackInfo>> {
        let found = call(py, || self.store()?.rollbacks(since, limit))?;
        Ok(found.into_iter().map(Into::into).collect())
    }

    fn plan(&self, py: Python<'_>, rollback: u64) -> PyResult<([u8; 32], Vec<PlannedTuple>)> {
        let plan = call(py, || self.store()?.plan(RollbackId(rollback)))?;
        let steps = plan.steps.into_iter().map(|step| {
            (step.effect.0, step.tool, step.agent, word(step.class, CLASSES), step.deadline_ms)
        });
        Ok((plan.digest, steps.collect()))
    }

    fn retry_step(
        &self,
        py: Python<'_>,
        rollback: u64,
        effect: u64,
        by: &str,
        reason: &str,
    ) -> PyResult<()> {
        let (rollback, effect) = (RollbackId(rollback), EffectId(effect));
        call(py, || self.store()?.retry_step(rollback, effect, by, reason)).map(drop)
    }

    fn resolve_step(
        &self,
        py: Python<'_>,
        rollback: u64,
        effect: u64,
        by: &str,
        reason: &str,
        versions: Vec<ReadPair>,
    ) -> PyResult<()> {
        let (rollback, effect, versions) =
            (RollbackId(rollback), EffectId(effect), reads_in(versions));
        call(py, || self.store()?.resolve_step(rollback, effect, by, reason, versions)).map(drop)
    }
}

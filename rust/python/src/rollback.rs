//! Rollbacks: plans, reports, and what a person does about a step.

use effectstore::model::{self, CauseKind, EffectId, RollbackId, RollbackState, Target, Trigger};
use pyo3::prelude::*;

use crate::approval::ApprovalInfo;
use crate::convert::{
    CLASSES, ReadPair, TargetPair, approval_ids, choice, ids, reads_in, target_in, word,
};
use crate::store::Handle;
use crate::wait::call;

/// Effect, tool, agent, kind, error type, message, attempts, writer.
type FailureTuple = (u64, String, String, &'static str, String, String, u32, Option<u64>);
/// Effect, tool, agent, reversibility, deadline in milliseconds.
type PlannedTuple = (u64, String, String, &'static str, Option<u64>);
/// Category, note, by, remedy.
type CauseTuple = (&'static str, String, String, Option<String>);
/// Effect, action, status, attempts, by.
type AuditTuple = (u64, String, &'static str, u32, Option<String>);

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

/// Who may ask for a governed rollback.
const REQUESTS: &[(&str, Trigger)] =
    &[("human", Trigger::Human), ("agent", Trigger::Agent), ("judge", Trigger::Judge)];

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
    limitations: Vec<(u64, String)>,
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
            limitations: report
                .limitations
                .into_iter()
                .map(|known| (known.effect.0, known.text))
                .collect(),
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
    direct: Vec<u64>,
    governed: bool,
    created_ms: u64,
    finished_ms: Option<u64>,
    root_cause: Option<CauseTuple>,
    waived: Option<(String, String)>,
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
            direct: ids(&info.direct),
            governed: info.governed,
            created_ms: info.created_ms,
            finished_ms: info.finished_ms,
            root_cause: info
                .root_cause
                .map(|cause| (cause.category.name(), cause.note, cause.by, cause.remedy)),
            waived: info.waived,
        }
    }
}

/// What a rollback touches.
#[pyclass(frozen, get_all, module = "effectstore._effectstore")]
pub(crate) struct ImpactInfo {
    effects: Vec<u64>,
    done: Vec<u64>,
    rests_on: Vec<u64>,
    keys: Vec<Vec<u8>>,
    agents: Vec<String>,
    reversibility: &'static str,
    not_compensable: Vec<u64>,
    limitations: Vec<(u64, String)>,
    expiring: Vec<u64>,
}

impl From<model::Impact> for ImpactInfo {
    fn from(impact: model::Impact) -> Self {
        ImpactInfo {
            effects: ids(&impact.effects),
            done: ids(&impact.done),
            rests_on: ids(&impact.rests_on),
            keys: impact.keys.into_iter().map(|key| key.0).collect(),
            agents: impact.agents,
            reversibility: word(impact.class, CLASSES),
            not_compensable: ids(&impact.not_compensable),
            limitations: impact
                .limitations
                .into_iter()
                .map(|(effect, text)| (effect.0, text))
                .collect(),
            expiring: ids(&impact.expiring),
        }
    }
}

/// The audit record of a rollback.
#[pyclass(frozen, get_all, module = "effectstore._effectstore")]
pub(crate) struct AuditInfo {
    rollback: Py<RollbackInfo>,
    original_action: u64,
    steps: Vec<AuditTuple>,
    approvals: Vec<Py<ApprovalInfo>>,
}

fn causes() -> Vec<(&'static str, CauseKind)> {
    CauseKind::ALL.iter().map(|kind| (kind.name(), *kind)).collect()
}

#[pymethods]
impl Handle {
    #[allow(clippy::too_many_arguments)] // The verb's own words.
    fn request_rollback(
        &self,
        py: Python<'_>,
        targets: Vec<TargetPair>,
        by: &str,
        reason: &str,
        trigger: &str,
        program_order: bool,
    ) -> PyResult<RollbackInfo> {
        let trigger = choice(py, "trigger", trigger, REQUESTS)?;
        let targets: Vec<Target> = targets.into_iter().map(target_in).collect();
        call(py, || self.store()?.request_rollback(targets, by, reason, trigger, program_order))
            .map(Into::into)
    }

    fn impact(&self, py: Python<'_>, rollback: u64) -> PyResult<ImpactInfo> {
        call(py, || self.store()?.impact(RollbackId(rollback))).map(Into::into)
    }

    fn audit(&self, py: Python<'_>, rollback: u64) -> PyResult<AuditInfo> {
        let audit = call(py, || self.store()?.audit(RollbackId(rollback)))?;
        let approvals =
            audit.approvals.into_iter().map(|known| Py::new(py, ApprovalInfo::from(known)));
        let steps = audit
            .steps
            .into_iter()
            .map(|step| (step.effect.0, step.action, step.status, step.attempts, step.by));
        Ok(AuditInfo {
            rollback: Py::new(py, RollbackInfo::from(audit.rollback))?,
            original_action: audit.original_action.0,
            steps: steps.collect(),
            approvals: approvals.collect::<PyResult<_>>()?,
        })
    }

    #[pyo3(signature = (rollback, category, note, by, remedy))]
    fn record_root_cause(
        &self,
        py: Python<'_>,
        rollback: u64,
        category: &str,
        note: &str,
        by: &str,
        remedy: Option<&str>,
    ) -> PyResult<RollbackInfo> {
        let category = choice(py, "category", category, &causes())?;
        let rollback = RollbackId(rollback);
        call(py, || self.store()?.record_root_cause(rollback, category, note, by, remedy))
            .map(Into::into)
    }

    fn waive_remedy(
        &self,
        py: Python<'_>,
        rollback: u64,
        by: &str,
        reason: &str,
    ) -> PyResult<RollbackInfo> {
        call(py, || self.store()?.waive_remedy(RollbackId(rollback), by, reason)).map(Into::into)
    }

    fn review(&self, py: Python<'_>, since: u64, limit: usize) -> PyResult<Vec<RollbackInfo>> {
        let found = call(py, || self.store()?.review(since, limit))?;
        Ok(found.into_iter().map(Into::into).collect())
    }

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

//! The Python extension module of effectstore: conversions and one error map, nothing else.
//!
//! Every call into the core detaches from the interpreter. Waits are cut into slices, and signals are
//! looked at between them, so that Ctrl-C ends a wait. Ids are ints, tokens pairs of ints, times
//! milliseconds, payloads and keys bytes; the façade in `python/effectstore` makes dataclasses of it.
#![allow(clippy::needless_pass_by_value)] // The glue hands arguments over by value.

mod approval;
mod artifact;
mod branch;
mod breaks;
mod convert;
mod effect;
mod errors;
mod fence;
mod log;
mod metrics;
mod outbox;
mod policy;
mod rollback;
mod step;
mod store;
mod wait;

/// The module as Python imports it.
#[pyo3::pymodule(gil_used = false)]
mod _effectstore {
    #[pymodule_export]
    use crate::approval::{AlertInfo, ApprovalInfo};
    #[pymodule_export]
    use crate::artifact::ArtifactPairInfo;
    #[pymodule_export]
    use crate::branch::BranchInfo;
    #[pymodule_export]
    use crate::breaks::NoticeInfo;
    #[pymodule_export]
    use crate::effect::EffectInfo;
    #[pymodule_export]
    use crate::fence::{DecisionInfo, FenceInfo, ReconciliationInfo};
    #[pymodule_export]
    use crate::log::{LogEntry, import_store};
    #[pymodule_export]
    use crate::outbox::DeliveryInfo;
    #[pymodule_export]
    use crate::rollback::{AuditInfo, ImpactInfo, ReportInfo, RollbackInfo};
    #[pymodule_export]
    use crate::step::StepInfo;
    #[pymodule_export]
    use crate::store::Handle;
}

//! Verbs of branches.

use effectstore::model::{self, BranchId};
use effectstore::store::NewBranch;
use pyo3::prelude::*;

use crate::convert::{
    BRANCH_STATES, OVERWRITES, ObservationTuple, READ_RULES, ReadPair, TokenPair, choice, ids,
    observations_out, reads_in, token_in, token_out, word,
};
use crate::store::Handle;
use crate::wait::{Patience, ask, call};

/// A branch.
#[pyclass(frozen, get_all, module = "effectstore._effectstore")]
pub(crate) struct BranchInfo {
    id: u64,
    name: String,
    agent: String,
    parent: Option<String>,
    token: TokenPair,
    state: &'static str,
    tip: Vec<u64>,
    reads: &'static str,
}

impl From<model::BranchInfo> for BranchInfo {
    fn from(info: model::BranchInfo) -> Self {
        BranchInfo {
            id: info.id.0,
            name: info.name,
            agent: info.agent,
            parent: info.parent,
            token: token_out(info.token),
            state: word(info.state, BRANCH_STATES),
            tip: ids(&info.tip),
            reads: word(info.reads, READ_RULES),
        }
    }
}

#[pymethods]
impl Handle {
    #[pyo3(signature = (name, agent, parent, parent_token, reads, overwrite, lease_ms))]
    #[allow(clippy::too_many_arguments)] // One for each thing that a branch says about itself.
    fn create_branch(
        &self,
        py: Python<'_>,
        name: String,
        agent: Option<String>,
        parent: Option<u64>,
        parent_token: Option<TokenPair>,
        reads: &str,
        overwrite: &str,
        lease_ms: Option<u64>,
    ) -> PyResult<BranchInfo> {
        let wanted = NewBranch {
            name,
            agent,
            parent: parent.map(BranchId),
            parent_token: parent_token.map(token_in),
            reads: choice(py, "reads", reads, READ_RULES)?,
            overwrite: choice(py, "overwrite", overwrite, OVERWRITES)?,
            lease_ms,
        };
        call(py, || self.store()?.create_branch(wanted)).map(Into::into)
    }

    #[pyo3(signature = (name, worker_gone, by))]
    fn takeover(
        &self,
        py: Python<'_>,
        name: &str,
        worker_gone: bool,
        by: Option<&str>,
    ) -> PyResult<BranchInfo> {
        call(py, || self.store()?.takeover(name, worker_gone, by)).map(Into::into)
    }

    fn join(&self, py: Python<'_>, name: &str, token: TokenPair) -> PyResult<BranchInfo> {
        call(py, || self.store()?.join(name, token_in(token))).map(Into::into)
    }

    fn branch_named(&self, py: Python<'_>, name: &str) -> PyResult<BranchInfo> {
        call(py, || self.store()?.branch_named(name)).map(Into::into)
    }

    fn branch(&self, py: Python<'_>, id: u64) -> PyResult<BranchInfo> {
        call(py, || self.store()?.branch(BranchId(id))).map(Into::into)
    }

    fn branches(&self, py: Python<'_>, since: u64, limit: usize) -> PyResult<Vec<BranchInfo>> {
        let found = call(py, || self.store()?.branches(since, limit))?;
        Ok(found.into_iter().map(Into::into).collect())
    }

    fn resume(&self, py: Python<'_>, branch: u64, token: TokenPair) -> PyResult<BranchInfo> {
        call(py, || self.store()?.resume(BranchId(branch), token_in(token))).map(Into::into)
    }

    fn merge(&self, py: Python<'_>, branch: u64, token: TokenPair) -> PyResult<BranchInfo> {
        call(py, || self.store()?.merge(BranchId(branch), token_in(token))).map(Into::into)
    }

    fn heartbeat(&self, py: Python<'_>, branch: u64, token: TokenPair) -> PyResult<BranchInfo> {
        call(py, || self.store()?.heartbeat(BranchId(branch), token_in(token))).map(Into::into)
    }

    fn seal(&self, py: Python<'_>, branch: u64, token: TokenPair) -> PyResult<BranchInfo> {
        call(py, || self.store()?.seal(BranchId(branch), token_in(token))).map(Into::into)
    }

    #[pyo3(signature = (branch, token, keys, since, wait_ms))]
    fn observe(
        &self,
        py: Python<'_>,
        branch: u64,
        token: TokenPair,
        keys: Vec<ReadPair>,
        since: Option<u64>,
        wait_ms: u64,
    ) -> PyResult<Vec<ObservationTuple>> {
        let (branch, token, keys) = (BranchId(branch), token_in(token), reads_in(keys));
        // Only the wait is cut into slices: a read that is refused has happened, and would be recorded
        // at every one.
        let readable = |slice_ms| self.store()?.wait_to_read(branch, &keys, slice_ms);
        ask(py, &Patience::of(wait_ms), readable, |readable| *readable)?;
        let found = call(py, || self.store()?.observe(branch, token, keys, since, 0))?;
        Ok(observations_out(found))
    }
}

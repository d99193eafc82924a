#![allow(missing_docs, unused)]
use super::State;
use crate::model::*;
impl State {
    pub(super) fn fold_doom(&mut self, _s: u64, _n: u64, _d: &Doom) {
        todo!()
    }
    pub(super) fn fold_step(&mut self, _s: u64, _e: &Event) {
        todo!()
    }
    pub(super) fn fold_finished(&mut self, _s: u64, _r: RollbackId, _x: &Report) {
        todo!()
    }
    pub(super) fn fold_recalled(&mut self, _s: u64, _r: &[Recalled], _x: &[(RollbackId, Report)]) {
        todo!()
    }
    pub(super) fn reopen_denied(&mut self, _r: RollbackId) {
        todo!()
    }
    pub fn approval_needed(&self, _r: RollbackId) -> Option<bool> {
        todo!()
    }
    pub(super) fn fold_evidence_doomed(
        &mut self,
        _s: u64,
        _e: EffectId,
        _o: Outcome,
        _i: Option<&Inverse>,
    ) {
        todo!()
    }
}

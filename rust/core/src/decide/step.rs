#![allow(missing_docs, unused)]
use super::{Ruling, Turn};
use crate::model::*;
use crate::state::*;
impl Turn<'_> {
    pub(super) fn claim(&mut self, _s: &ClaimSpec) -> Ruling<Reply> {
        todo!()
    }
    pub(super) fn end_step(
        &mut self,
        _h: StepHold,
        _e: &StepEnd,
        _n: Option<&ClaimSpec>,
    ) -> Ruling<Reply> {
        todo!()
    }
    pub(super) fn renew_step(&mut self, _h: StepHold, _l: u64) -> Ruling<Reply> {
        todo!()
    }
    pub(super) fn retry_step(
        &mut self,
        _r: RollbackId,
        _e: EffectId,
        _b: &str,
        _x: &str,
    ) -> Ruling<Reply> {
        todo!()
    }
    pub(super) fn resolve_step(
        &mut self,
        _r: RollbackId,
        _e: EffectId,
        _b: &str,
        _x: &str,
        _v: &[Read],
    ) -> Ruling<Reply> {
        todo!()
    }
    pub(super) fn ask(&mut self, _a: &Ask, _b: &str, _r: &str) -> Ruling<Reply> {
        todo!()
    }
    pub(super) fn answer(
        &mut self,
        _a: ApprovalId,
        _p: bool,
        _b: &str,
        _r: Option<&str>,
    ) -> Ruling<Reply> {
        todo!()
    }
    pub(super) fn deliver(&mut self, _a: &str, _t: Option<&[String]>, _l: u64) -> Ruling<Reply> {
        todo!()
    }
    pub(super) fn hold_delivery(
        &mut self,
        _e: EffectId,
        _t: Token,
        _l: Option<u64>,
    ) -> Ruling<Reply> {
        todo!()
    }
    pub(super) fn late_report(
        &mut self,
        _e: EffectId,
        _o: Outcome,
        _r: Option<PayloadRef>,
        _i: Option<&Inverse>,
        _p: Option<&Problem>,
    ) -> Ruling<()> {
        todo!()
    }
    pub(super) fn due(&mut self) -> Ruling<()> {
        todo!()
    }
    pub(super) fn follow(&mut self) -> Ruling<()> {
        todo!()
    }
}
pub fn report_of(_s: &State, _r: &Rollback) -> Report {
    todo!()
}
pub fn plan_of(_s: &State, _r: &Rollback) -> Plan {
    todo!()
}
pub fn rollback_state(_s: &State, _r: &Rollback) -> RollbackState {
    todo!()
}

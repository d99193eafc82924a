use super::State;
use crate::model::*;
impl State {
    pub(super) fn try_release(&mut self, _e: EffectId) {
        todo!()
    }
}

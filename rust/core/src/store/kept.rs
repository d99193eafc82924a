//! What an abort keeps: effects of the branches that it names and that fences have committed before.

use std::collections::BTreeSet;

use super::EffectStore;
use crate::decide::{Fate, History as _};
use crate::error::Error;
use crate::log::{Past, corrupted};
use crate::model::{BranchId, EffectId, Event, Reconciliation, Target};

/// How far back the log is read; committed effects are not in memory.
const RECORDS_BACK: u64 = 100_000;

impl EffectStore {
    /// Completes what was kept by the committed effects of the named branches and of those below
    /// them. It reads at most so many records and so may leave out old ones. Nothing of such a branch
    /// can be committed any more, so looking after the decision tells what was true in it.
    pub(super) fn with_kept(
        &self,
        named: &[Target],
        mut done: Reconciliation,
    ) -> Result<Reconciliation, Error> {
        if !named.iter().any(|target| matches!(target, Target::Branch(_))) {
            return Ok(done);
        }
        let (core, view) = self.engine().look()?;
        let mut family: BTreeSet<BranchId> = named
            .iter()
            .filter_map(|target| match target {
                Target::Branch(id) => Some(*id),
                Target::Effect(_) => None,
            })
            .filter(|id| core.state.branches.get(id).is_none_or(|branch| branch.has_committed))
            .collect();
        drop(core);
        let Some(first) = family.first().map(|branch| branch.0) else { return Ok(done) };
        let from = first.max(view.head()?.saturating_sub(RECORDS_BACK));
        drop(view);
        let mut members: Vec<EffectId> = Vec::new();
        self.scan(from, &mut |seq, header| {
            match &header.event {
                Event::BranchCreated { parent: Some(parent), .. } if family.contains(parent) => {
                    family.insert(BranchId(seq));
                }
                Event::Registered(registered) if family.contains(&registered.branch) => {
                    members.push(EffectId(seq));
                }
                _ => {}
            }
            true
        })?;
        let (core, view) = self.engine().look()?;
        let past = Past::new(view.as_ref(), &core.index);
        for id in members {
            let committed = if let Some(effect) = core.state.effects.get(id) {
                effect.shown_state() == crate::model::EffectState::Committed
            } else {
                let fate = past.fate(id).map_err(|error| corrupted(error.0))?;
                matches!(fate, Some(Fate::Committed | Fate::Compensated))
            };
            if committed {
                done.kept.push(id);
            }
        }
        done.kept.sort_unstable();
        done.kept.dedup();
        Ok(done)
    }
}

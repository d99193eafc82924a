//! What an effect rests on directly, as the records say: the same answer whatever memory holds of it
//! just now, so neither its fence nor a governed rollback changes it.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use crate::codec::Record;
use crate::error::Error;
use crate::log::{corrupted, is_void};
use crate::model::{After, EffectId, Event, Follows, Observation, Registered};
use crate::storage::ReadView;

/// What the records heard so far name.
#[derive(Clone, Debug, Default)]
pub(super) struct Resting(BTreeSet<EffectId>);

impl Resting {
    /// What the registration names: edges, what it follows, and the versions that the caller vouched
    /// for. A version from before the store is no effect's.
    pub(super) fn of(registered: &Registered) -> Self {
        let mut named: BTreeSet<EffectId> = registered.rests_on.iter().copied().collect();
        match &registered.call.follows {
            Follows::Tip | Follows::Turn(_) => named.extend(&registered.program),
            Follows::These(after) => named.extend(after.iter().filter_map(|after| match after {
                After::Effect(effect) => Some(*effect),
                After::Item(_) => None, // The record names effects.
            })),
        }
        let versions = registered.call.reads.iter().filter_map(|read| read.version);
        named.extend(versions.filter(|version| *version > 0).map(EffectId));
        Resting(named)
    }

    /// What a later record of the effect adds.
    pub(super) fn hear(&mut self, id: EffectId, event: &Event) {
        match event {
            Event::Done { effect, rests_on, .. } | Event::Delivered { effect, rests_on, .. }
                if *effect == id =>
            {
                self.0.extend(rests_on);
            }
            Event::NotRun { effect, observed, .. } if *effect == id => self.0.extend(observed),
            Event::ObservedLate { effect, observations, rests_on } if *effect == id => {
                self.0.extend(rests_on);
                self.0.extend(observations.iter().filter_map(version_of));
            }
            _ => {}
        }
    }

    /// Everything that it rests on. What never happened leaves its place to what it rested on.
    pub(super) fn finish(
        mut self,
        view: &dyn ReadView,
        id: EffectId,
    ) -> Result<Vec<EffectId>, Error> {
        let mut todo: Vec<EffectId> = self.0.iter().copied().collect();
        while let Some(next) = todo.pop() {
            if is_void(view, next)? {
                let below = of_void(view, next)?;
                todo.extend(below.0.iter().copied().filter(|below| self.0.insert(*below)));
            }
        }
        self.0.remove(&id);
        Ok(self.0.into_iter().collect())
    }
}

fn version_of(observation: &Observation) -> Option<EffectId> {
    observation.version.filter(|version| *version > 0).map(EffectId)
}

/// What a void effect rested on; its records end with the report that it did not run.
fn of_void(view: &dyn ReadView, id: EffectId) -> Result<Resting, Error> {
    let mut resting = Resting::default();
    let mut failed = None;
    view.scan(id.0, &mut |seq, bytes| {
        let event = match Record::decode_header(bytes) {
            Ok(header) => header.event,
            Err(error) => {
                failed = Some(corrupted(format!("record {seq}: {error}")));
                return ControlFlow::Break(());
            }
        };
        match &event {
            Event::Registered(registered) if seq == id.0 => resting = Resting::of(registered),
            event => resting.hear(id, event),
        }
        match event {
            Event::NotRun { effect, .. } if effect == id => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    })?;
    failed.map_or(Ok(resting), |error| Err(Error::Storage(error)))
}

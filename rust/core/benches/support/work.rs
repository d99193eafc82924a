//! Building what is measured: stores with branches, effects and histories.

use std::path::Path;

use effectstore::model::{
    After, BranchInfo, Follows, Inverse, Limits, Mode, Placed, Receipt, Registration, Target,
};
use effectstore::store::{NewBranch, Payloads};
use effectstore::{EffectStore, Options};

use super::Answer;
use super::chance::Chance;

/// How far back a dependency reaches.
pub const WINDOW: u64 = 256;

/// Threads that report outcomes; they share commits.
const REPORTERS: usize = 32;

/// A store, a branch or more in it, and what they are made with.
pub struct Site {
    pub store: EffectStore,
    pub branches: Vec<BranchInfo>,
    pub chance: Chance,
    made: u64,
}

impl Site {
    /// A fresh store in `dir`, or in memory where there is none.
    pub fn new(dir: Option<&Path>, branches: usize, seed: u64) -> Answer<Self> {
        let mut options = Options::default();
        options.limits = Some(Limits { live_effects: 4_000_000, ..Limits::default() });
        let store = match dir {
            Some(dir) => EffectStore::open(dir, options)?,
            None => EffectStore::in_memory(options)?,
        };
        let mut site = Site { store, branches: Vec::new(), chance: Chance::new(seed), made: 0 };
        for number in 0..branches {
            site.branches.push(site.store.create_branch(NewBranch::named(format!("b{number}")))?);
        }
        Ok(site)
    }

    /// A call with 432 bytes of payload: 300 of arguments and 132 of the inverse's.
    pub fn call(&mut self, payloads: &mut Payloads) -> Registration {
        self.made += 1;
        let mut args = vec![0x61; 300];
        args[..8].copy_from_slice(&self.made.to_be_bytes());
        let mut undo = vec![0x62; 132];
        undo[..8].copy_from_slice(&self.made.to_be_bytes());
        let (args, undo) = (payloads.put(args), payloads.put(undo));
        Registration::new("write_config", args)
            .writes(format!("config/{}", self.made).as_str())
            .inverse(Inverse::call("write_config", Some(undo)))
    }

    /// Puts a call into a branch.
    pub fn placed(&self, branch: usize, call: Registration, follows: Follows) -> Placed {
        let branch = &self.branches[branch];
        Placed { branch: branch.id, token: branch.token, call: Registration { follows, ..call } }
    }

    /// Registers `count` effects in one call, spread over the branches, each resting on `degree`
    /// others of the last 256; with `chained`, one of them is the effect before it.
    pub fn register_graph(
        &mut self,
        count: u64,
        degree: u64,
        chained: bool,
    ) -> Answer<Vec<Receipt>> {
        let mut payloads = Payloads::default();
        let mut calls = Vec::new();
        for place in 0..count {
            let call = self.call(&mut payloads);
            let window = place.min(WINDOW);
            let mut on: Vec<u64> = Vec::new();
            if chained && place > 0 {
                on.push(place - 1);
            }
            while (on.len() as u64) < degree.min(window) {
                let drawn = place - 1 - self.chance.below(window);
                if !on.contains(&drawn) {
                    on.push(drawn);
                }
            }
            let follows = Follows::These(on.into_iter().map(After::Item).collect());
            let branch = usize::try_from(place)? % self.branches.len();
            calls.push(self.placed(branch, call, follows));
        }
        Ok(self.store.register(calls, payloads, 0)?)
    }

    /// Reports all as done, from several threads that share commits.
    pub fn report_done(&self, receipts: &[Receipt]) -> Answer<()> {
        let failed = std::thread::scope(|scope| {
            let share = receipts.len().div_ceil(REPORTERS).max(1);
            let threads: Vec<_> = receipts
                .chunks(share)
                .map(|part| {
                    scope.spawn(move || {
                        part.iter().try_for_each(|receipt| {
                            let token = receipt.token.unwrap_or_default();
                            let none = Payloads::default();
                            let result = b"\xf6".to_vec();
                            self.store
                                .done(receipt.effect, token, result, None, none, true)
                                .map(|_| ())
                        })
                    })
                })
                .collect();
            threads.into_iter().find_map(|thread| thread.join().ok().and_then(Result::err))
        });
        failed.map_or(Ok(()), |error| Err(error.into()))
    }

    /// All branches as targets.
    pub fn targets(&self) -> Vec<Target> {
        self.branches.iter().map(|branch| Target::Branch(branch.id)).collect()
    }

    /// Makes `count` records of history in which nothing is live: effects that were never run and
    /// whose branch was aborted.
    pub fn age(&mut self, count: u64) -> Answer<()> {
        let mut left = count;
        while left > 0 {
            let name = format!("past-{left}");
            let past = self.store.create_branch(NewBranch::named(name))?;
            let mut payloads = Payloads::default();
            let mut calls = Vec::new();
            for _ in 0..left.min(10_000) {
                let call = self.call(&mut payloads).mode(Mode::Deferred);
                let call = Registration { follows: Follows::These(Vec::new()), ..call };
                calls.push(Placed { branch: past.id, token: past.token, call });
            }
            left -= calls.len() as u64;
            self.store.register(calls, payloads, 0)?;
            self.store.abort(Target::Branch(past.id), past.token, "history", None)?;
        }
        Ok(())
    }
}

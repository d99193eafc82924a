//! What a random sequence is made of: settings of a store, and commands as short byte strings.
//!
//! A command's bytes are read as choices among what exists at that moment, so every byte string is a
//! command and any part of a sequence is a sequence: a failure shrinks by leaving commands out.

use std::collections::BTreeSet;

use effectstore::model as real;

use super::effects::{Behind, Call};
use super::world::*;

pub const KEYS: [Key; 4] = ['a', 'b', 'c', 'd'];
pub const AGENTS: [&str; 2] = ["ann", "bob"];
pub const UNKNOWN_ID: Id = 1_000_000_000;
pub type Command = [u8; 12];

/// One kind of store and the branches made in it.
#[derive(Clone, Debug)]
pub struct Setting {
    pub policy: Policy,
    pub limits: Limits,
    pub rules: &'static [Rule],
    pub depend: &'static [bool],
    pub leases: &'static [Option<u64>],
    pub branches: usize,
    pub children: bool,
}

impl Setting {
    /// Speculative branches without children, leases or limits.
    pub fn plain() -> Self {
        // Halves keep due times off the whole seconds by which the clock moves.
        let retry = Retry { max_attempts: 2, delay_ms: 2_500, max_delay_ms: 30_500 };
        let policy =
            Policy { require_inverse: true, auto_keys: 5, reserved: false, go_on: false, retry };
        Setting {
            policy,
            limits: Limits::default(),
            rules: &[Rule::Speculative],
            depend: &[false],
            leases: &[None],
            branches: 4,
            children: false,
        }
    }

    /// Read rules, and branches that rest on what they overwrite.
    pub fn rules() -> Self {
        let rules = &[Rule::Speculative, Rule::Sealed, Rule::Committed];
        Setting { rules, depend: &[false, true], ..Setting::plain() }
    }

    /// Children of children, and leases.
    pub fn nested() -> Self {
        Setting {
            depend: &[false, true],
            leases: &[None, None, Some(40_500)],
            branches: 6,
            children: true,
            ..Setting::plain()
        }
    }

    /// Limits that are reached, effects without inverse, plans that need a person.
    pub fn strict() -> Self {
        let plain = Setting::plain();
        let policy = Policy { auto_keys: 1, go_on: true, require_inverse: false, ..plain.policy };
        let limits =
            Limits { live_effects: Some(12), live_writers_per_key: Some(2), closure: Some(6) };
        Setting { policy, limits, ..plain }
    }
}

impl Setting {
    /// The limits as the store takes them.
    pub fn real_limits(&self) -> real::Limits {
        let mut limits = real::Limits::default();
        if let Some(live) = self.limits.live_effects {
            limits.live_effects = live as u64;
        }
        if let Some(writers) = self.limits.live_writers_per_key {
            limits.live_writers_per_key = writers as u64;
        }
        limits.closure = self.limits.closure.map(|closure| closure as u64);
        limits
    }

    /// The policy as the store takes it.
    pub fn real_policy(&self) -> real::Policy {
        let Policy { require_inverse, auto_keys, reserved, go_on, retry } = self.policy;
        real::Policy {
            require_inverse,
            auto_keys: auto_keys as u64,
            authority: if reserved { real::Authority::Reconcile } else { real::Authority::Owner },
            on_failure: if go_on { real::OnFailure::Continue } else { real::OnFailure::Halt },
            retry: real::Retry {
                max_attempts: retry.max_attempts,
                delay_ms: retry.delay_ms,
                backoff: 2.0,
                max_delay_ms: retry.max_delay_ms,
                jitter: 0.0,
            },
            // The model knows no limit to confirm, so none is ever over.
            confirm_within_ms: u64::MAX,
            ..real::Policy::default()
        }
    }
}

/// Reads a command's bytes as choices; past the end every choice is the first.
pub struct Dice<'a> {
    pub data: &'a [u8],
    pub place: usize,
}

impl<'a> Dice<'a> {
    pub fn new(data: &'a [u8]) -> Self {
        Dice { data, place: 0 }
    }

    /// A number below `sides`.
    pub fn roll(&mut self, sides: usize) -> usize {
        let value = self.data.get(self.place).copied().unwrap_or(0);
        self.place += 1;
        usize::from(value) % sides
    }

    pub fn pick<T: Clone>(&mut self, items: &[T]) -> T {
        items[self.roll(items.len())].clone()
    }

    /// True seven times out of eight.
    pub fn often(&mut self) -> bool {
        self.roll(8) != 7
    }
}

/// Mostly plain, now and then compare-and-set, partial, for anyone, with a window, or none.
fn inverse_from(dice: &mut Dice<'_>, now_ms: u64) -> Option<Inverse> {
    let kind = dice.roll(16);
    (kind != 15).then(|| Inverse {
        compare_and_set: (8..12).contains(&kind),
        partial: kind == 12,
        anyone: kind == 13,
        deadline_ms: (kind == 14).then_some(now_ms + 90_500),
    })
}

fn writers_of(model: &Model, key: Key) -> Vec<Id> {
    let writers = model.effects.keys().rev().copied();
    writers.filter(|e| model.wrote(*e, key)).collect()
}

/// A version of the key, newest first, or 0.
pub fn version_of(dice: &mut Dice<'_>, model: &Model, key: Key) -> Id {
    let mut versions = writers_of(model, key);
    versions.push(0);
    dice.pick(&versions)
}

fn reads_and_writes(dice: &mut Dice<'_>, model: &Model) -> (Vec<(Key, Option<Id>)>, BTreeSet<Key>) {
    let shape = dice.roll(16);
    let mut reads: Vec<(Key, Option<Id>)> = Vec::new();
    let mut writes: BTreeSet<Key> = BTreeSet::new();
    if matches!(shape, 1..=3 | 6..=8) {
        reads.push((dice.pick(&KEYS), None));
    }
    if matches!(shape, 4 | 9) {
        let key = dice.pick(&KEYS);
        reads.push((key, Some(version_of(dice, model, key))));
    }
    if shape > 1 {
        writes.insert(dice.pick(&KEYS));
    }
    if shape == 9 {
        writes = reads.iter().map(|read| read.0).collect();
    }
    if matches!(shape, 5 | 8) {
        writes.insert(dice.pick(&KEYS));
    }
    if matches!(shape, 6 | 7) {
        reads = writes.iter().map(|key| (*key, None)).collect();
    }
    (reads, writes)
}

/// One registration: few keys, so that calls meet; now and then wrong ids, versions, repeated names.
pub fn call_from(dice: &mut Dice<'_>, model: &Model, earlier: usize) -> Call {
    let (reads, writes) = reads_and_writes(dice, model);
    let order = dice.roll(16);
    let newest: Vec<Id> = model.effects.keys().rev().copied().collect();
    let after = match order {
        8..=10 => Some(Vec::new()),
        11 | 12 if !newest.is_empty() => {
            let deferred: Vec<Id> =
                model.live().into_iter().filter(|e| model.effects[e].deferred).collect();
            let pool = if !deferred.is_empty() && dice.roll(2) == 1 { deferred } else { newest };
            Some(vec![Behind::Effect(dice.pick(&pool))])
        }
        13 if earlier > 0 => Some(vec![Behind::Item(dice.roll(earlier))]),
        14 if dice.roll(4) == 3 => Some(vec![Behind::Effect(UNKNOWN_ID)]),
        _ => None,
    };
    let name = (dice.roll(10) == 9).then(|| dice.roll(3) as u8);
    let kind = dice.roll(16);
    Call {
        tool: if name.is_some() { dice.roll(2) as u8 } else { 9 },
        args: u8::from(name.is_some() && !dice.often()),
        reads,
        writes,
        after,
        inverse: inverse_from(dice, model.now_ms),
        irreversible: kind == 15,
        deferred: kind == 14,
        name,
    }
}

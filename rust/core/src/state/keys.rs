//! What memory knows of keys: who writes them, and what a reader may have seen.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::model::{EffectId, Key};

/// A committed writer that an earlier writer in memory must not undo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaterWriter {
    /// The newest of them.
    pub effect: EffectId,
    /// Its place in the order of writes.
    pub position: u64,
    /// Records that memory needs for it.
    pub records: Vec<u64>,
}

/// What a reader since some moment may have seen and can see no more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// The last moment (record) at which the key was dirty, and the writer that made it so.
    pub dirty_at: u64,
    /// That writer.
    pub dirty_by: EffectId,
    /// Writers that became void, with the record that said so.
    pub voided: Vec<(EffectId, u64)>,
    /// Records that memory needs for all this, ascending.
    pub records: Vec<u64>,
}

impl Trace {
    /// Notes records that memory needs.
    fn need(&mut self, records: &[u64]) {
        for record in records {
            match self.records.last() {
                Some(last) if last >= record => {
                    if let Err(place) = self.records.binary_search(record) {
                        self.records.insert(place, *record);
                    }
                }
                _ => self.records.push(*record),
            }
        }
    }
}

/// One key.
#[derive(Clone, Debug, Default)]
pub struct KeyEntry {
    /// Its writers in memory, in the order of their writes.
    pub writers: Vec<EffectId>,
    /// Live writers that no other live writer rests on. (A few too many are harmless.)
    pub frontier: Vec<EffectId>,
    /// The newest committed writer that came after one in memory.
    pub later: Option<LaterWriter>,
    /// What may have been seen.
    pub trace: Option<Box<Trace>>,
    /// Delivered effects that read it and have not reported.
    pub delivered_readers: Vec<EffectId>,
}

impl KeyEntry {
    fn is_empty(&self) -> bool {
        self.writers.is_empty()
            && self.later.is_none()
            && self.trace.is_none()
            && self.delivered_readers.is_empty()
    }
}

/// Keys in memory. The map is only ever looked up, never walked, so its order cannot matter.
#[derive(Default)]
pub struct Keys {
    entries: HashMap<Key, KeyEntry>,
    /// Keys with a trace, by its newest moment, so that old ones can be let go. A key stays where it
    /// was when its trace gets newer, and is passed over there.
    traced: BTreeMap<u64, Vec<Key>>,
    /// How many keys have a trace.
    traces: usize,
    /// How many entries of `traced` are passed over.
    outdated: usize,
    /// Traces up to this record were let go.
    pub horizon: u64,
}

impl Keys {
    /// How many traces are kept however short the running effects are, for bracketed reads.
    pub const TRACES: usize = 65_536;

    /// The key, if memory knows anything of it.
    pub fn get(&self, key: &Key) -> Option<&KeyEntry> {
        self.entries.get(key)
    }

    /// Number of keys in memory.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether memory knows no key.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The key, to change it.
    pub fn entry(&mut self, key: &Key) -> &mut KeyEntry {
        if !self.entries.contains_key(key) {
            self.entries.insert(key.clone(), KeyEntry::default());
        }
        self.entries.entry(key.clone()).or_default()
    }

    /// The key, to change it if memory knows it.
    pub fn get_mut(&mut self, key: &Key) -> Option<&mut KeyEntry> {
        self.entries.get_mut(key)
    }

    /// Lets a key go if nothing is known of it but this writer; whether that was so.
    pub fn forget_sole_writer(&mut self, key: &Key, writer: EffectId) -> bool {
        let sole = self.entries.get(key).is_some_and(|entry| {
            entry.writers == [writer]
                && entry.later.is_none()
                && entry.trace.is_none()
                && entry.delivered_readers.is_empty()
        });
        if sole {
            self.entries.remove(key);
        }
        sole
    }

    /// Lets a key go of which nothing is known any more.
    pub fn shrink(&mut self, key: &Key) {
        if self.entries.get(key).is_some_and(KeyEntry::is_empty) {
            self.entries.remove(key);
        }
    }

    /// Notes that something was seen at `moment` that a later look must know of.
    pub fn trace(
        &mut self,
        key: &Key,
        moment: u64,
        records: &[u64],
        note: impl FnOnce(&mut Trace),
    ) -> &mut KeyEntry {
        if self.outdated > self.traces + Self::TRACES {
            self.forget_outdated();
        }
        if !self.entries.contains_key(key) {
            self.entries.insert(key.clone(), KeyEntry::default());
        }
        let entry = self.entries.entry(key.clone()).or_default();
        let trace = entry.trace.get_or_insert_default();
        let before = trace.records.last().copied();
        note(trace);
        trace.need(records);
        trace.need(&[moment]);
        let after = trace.records.last().copied();
        self.traces += usize::from(before.is_none());
        if let Some(after) = after.filter(|after| before != Some(*after)) {
            self.outdated += usize::from(before.is_some());
            self.traced.entry(after).or_default().push(key.clone());
        }
        entry
    }

    fn forget_outdated(&mut self) {
        let entries = &self.entries;
        self.traced.retain(|moment, keys| {
            keys.retain(|key| is_newest(entries, key, *moment));
            keys.sort_unstable();
            keys.dedup();
            !keys.is_empty()
        });
        self.outdated = 0;
    }

    /// Lets traces go that no running effect can ask for and that are many.
    pub fn forget_traces(&mut self, oldest_running: Option<EffectId>) {
        while self.traces > Self::TRACES {
            let Some(mut oldest) = self.traced.first_entry() else { return };
            let moment = *oldest.key();
            if oldest_running.is_some_and(|oldest| oldest.0 < moment) {
                return;
            }
            // Of one moment the smallest key goes first, whatever the order in which they came.
            let mut keys = std::mem::take(oldest.get_mut());
            keys.sort_unstable_by(|left, right| right.cmp(left));
            while self.traces > Self::TRACES
                && let Some(key) = keys.pop()
            {
                if !is_newest(&self.entries, &key, moment) {
                    self.outdated = self.outdated.saturating_sub(1);
                    continue;
                }
                self.horizon = self.horizon.max(moment);
                self.traces -= 1;
                if let Some(entry) = self.entries.get_mut(&key) {
                    entry.trace = None;
                }
                self.shrink(&key);
            }
            if keys.is_empty() {
                self.traced.remove(&moment);
            } else {
                self.traced.insert(moment, keys);
            }
        }
    }

    /// Records that memory needs for keys.
    pub fn needed(&self, into: &mut BTreeSet<u64>) {
        for key in self.traced.values().flatten() {
            if let Some(trace) = self.entries.get(key).and_then(|entry| entry.trace.as_ref()) {
                into.extend(trace.records.iter().copied());
            }
        }
    }
}

/// Whether the trace of a key is of this moment and no newer one.
fn is_newest(entries: &HashMap<Key, KeyEntry>, key: &Key, moment: u64) -> bool {
    let trace = entries.get(key).and_then(|entry| entry.trace.as_ref());
    trace.is_some_and(|trace| trace.records.last() == Some(&moment))
}

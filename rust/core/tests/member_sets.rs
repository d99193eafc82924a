//! Member sets: what is written is read back, in the smallest form, and hostile bytes are refused.

// A test stops at the first surprise, and its numbers are small.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

use std::collections::BTreeSet;

use effectstore::model::{EffectId, MAX_MEMBERS, MemberSet};
use proptest::prelude::*;

fn bytes_of(set: &MemberSet) -> Vec<u8> {
    minicbor::to_vec(set).unwrap()
}

fn decoded(bytes: &[u8]) -> Result<MemberSet, String> {
    minicbor::decode(bytes).map_err(|error| error.to_string())
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

/// A set like those of fences: pieces that are dense, striped or scattered.
fn ids() -> impl Strategy<Value = Vec<u64>> {
    let near = prop_oneof![Just(0u64), 1u64..1_000_000, Just(u64::MAX - 600)];
    let piece = prop_oneof![
        (near.clone(), 0u64..300).prop_map(|(from, len)| (from..from + len).collect::<Vec<_>>()),
        (near.clone(), prop::collection::vec(0u64..500, 0..200))
            .prop_map(|(from, offsets)| offsets.into_iter().map(|offset| from + offset).collect()),
        prop::collection::vec(any::<u64>(), 0..8),
        (near, 2u64..9).prop_map(|(from, by)| (0..60).map(|n| from + n * by).collect()),
    ];
    prop::collection::vec(piece, 0..5).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn a_set_is_read_back(ids in ids()) {
        let model: BTreeSet<u64> = ids.iter().copied().collect();
        let set = MemberSet::from_unsorted(ids.clone());
        let bytes = bytes_of(&set);
        let read = decoded(&bytes).unwrap();
        prop_assert_eq!(&read, &set);
        prop_assert_eq!(bytes_of(&read), bytes);
        prop_assert!(read.as_slice().iter().copied().eq(model.iter().copied()));
        prop_assert_eq!((read.len(), read.is_empty()), (model.len(), model.is_empty()));
        for id in ids.iter().flat_map(|&id| [id, id.wrapping_add(1)]) {
            prop_assert_eq!(read.contains(EffectId(id)), model.contains(&id));
        }
        prop_assert_eq!(MemberSet::from_sorted(ids), set);
    }

    /// No form that a plain encoder would write is smaller.
    #[test]
    fn the_smallest_form_is_taken(ids in ids()) {
        let set = MemberSet::from_unsorted(ids);
        let size = bytes_of(&set).len();
        let number = |number: u64| (0..10).find(|n| number >> (7 * n) < 128).unwrap_or(9) + 1;
        let string = |len: usize| len + match len { 0..24 => 1, 24..256 => 2, 256..65_536 => 3, _ => 5 };
        let gaps: usize = set.as_slice().iter().copied().scan(0, |next, id| {
            let gap = id - *next;
            *next = id.wrapping_add(1);
            Some(number(gap))
        }).sum();
        prop_assert!(size <= 2 + string(gaps));
        if let (Some(&first), Some(&last)) = (set.as_slice().first(), set.as_slice().last()) {
            let span = (last - first) / 8 + 1;
            if span < 10_000 {
                prop_assert!(size <= 2 + 9 + string(span as usize));
            }
        }
    }

    #[test]
    fn damaged_bytes_are_refused_or_read_as_a_set(
        ids in ids(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = bytes_of(&MemberSet::from_unsorted(ids));
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        for bytes in [&bytes[..], &bytes[..cut.index(bytes.len())]] {
            // A flipped length may claim millions of members in a few bytes; that is in bounds.
            if let Ok(set) = decoded(bytes) {
                prop_assert!(set.len() <= MAX_MEMBERS);
                prop_assert!(set.as_slice().is_sorted_by(|left, right| left < right));
                prop_assert_eq!(decoded(&bytes_of(&set)).unwrap(), set);
            }
        }
    }

    #[test]
    fn random_bytes_never_panic(
        form in 0u8..4, base in any::<u64>(), content in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut bytes = Vec::new();
        let mut encoder = minicbor::Encoder::new(&mut bytes);
        if form == 1 {
            encoder.array(3).unwrap().u8(form).unwrap().u64(base).unwrap().bytes(&content).unwrap();
        } else {
            encoder.array(2).unwrap().u8(form).unwrap().bytes(&content).unwrap();
        }
        if let Ok(set) = decoded(&bytes) {
            // Each form writes a set in one way only, so what was read is what would be written.
            prop_assert!(set.as_slice().is_sorted_by(|left, right| left < right));
            prop_assert_eq!(decoded(&bytes_of(&set)).unwrap(), set);
        }
    }
}

#[test]
fn each_form_has_the_documented_bytes() {
    let striped = format!("83011903e850{}", "55".repeat(16));
    let cases: [(Vec<u64>, &str); 7] = [
        (vec![], "820040"),
        // One id costs a byte less as a gap than as a run.
        (vec![5], "82024105"),
        ((100..200).collect(), "8200426463"),
        // Between the two runs ten ids are left out, which is written less one.
        ((100..110).chain(120..130).collect(), "82004464090909"),
        ((0..64).map(|n| 1_000 + 2 * n).collect(), &striped),
        (vec![3, 300, 40_000], "82024603a80293b602"),
        (vec![u64::MAX], "83011bffffffffffffffff4101"),
    ];
    for (ids, text) in cases {
        let set = MemberSet::from_sorted(ids);
        assert_eq!(bytes_of(&set), hex(text), "{set:?}");
        assert_eq!(decoded(&hex(text)).unwrap(), set);
    }
}

#[test]
fn what_the_format_does_not_allow_is_refused() {
    let cases = [
        ("82034100", "unknown form"),
        ("9f0040ff", "unknown form"),
        ("83004000", "unknown form"),
        ("82014100", "unknown form"),
        ("83010040", "empty bitmap"),
        ("8301004102", "longer than its ids"),
        ("830100420100", "longer than its ids"),
        ("83011bffffffffffffffff4103", "beyond 64 bits"),
        ("82024180", "cut short"),
        ("8202428000", "longer than needed"),
        ("82024affffffffffffffffff02", "beyond 64 bits"),
        ("82024bffffffffffffffffffff00", "beyond 64 bits"),
        ("82024bffffffffffffffffff0100", "beyond 64 bits"),
        ("82004101", "cut short"),
        ("82004bffffffffffffffffff0101", "beyond 64 bits"),
        // A run that ends at the last id but one leaves no room for another.
        ("82004dfeffffffffffffffff01000000", "beyond 64 bits"),
        // One run of 2^24 + 1 ids, and one of 2^63.
        ("8200450080808008", "more than 2^24"),
        ("82004b0080808080808080808001", "more than 2^24"),
        // A byte string that claims 2^63 bytes.
        ("82025b8000000000000000", "end of input"),
    ];
    for (text, problem) in cases {
        let error = decoded(&hex(text)).unwrap_err();
        assert!(error.contains(problem), "{text}: {error}");
    }
}

#[test]
fn the_bound_on_members_holds_both_ways() {
    let most = MemberSet::from_sorted((0..MAX_MEMBERS as u64).collect());
    assert_eq!(decoded(&bytes_of(&most)).unwrap(), most);
    let more = MemberSet::from_sorted((0..=MAX_MEMBERS as u64).collect());
    assert!(minicbor::to_vec(&more).is_err());
}

//! A set of ids as one record of the log holds it.
//!
//! # Format
//!
//! A CBOR array of definite length, in the smallest of three forms (the first of equals). A *number*
//! inside a byte string is an unsigned LEB128: seven bits per byte, lowest first, the high bit set
//! on all but the last byte, no needless last byte of zero, at most 64 bits.
//!
//! | form | array | content |
//! |---|---|---|
//! | runs | `[0, bytes]` | two numbers per run of successive ids: the gap before it and its length less one |
//! | bitmap | `[1, first, bytes]` | bit `i` (lowest first) of byte `j` stands for the id `first + 8 * j + i` |
//! | gaps | `[2, bytes]` | one number per id: the gap before it |
//!
//! The gap of the first run or id is its id. The gap of a later id is the count of ids left out
//! since the one before; that of a later run is one less, since at least one id lies between two
//! runs. In a bitmap the lowest bit of the first byte and some bit of the last byte are set. So each
//! form writes a set in one way only, and no order of ids other than the ascending one can be
//! written. The empty set is `[0, h'']`.

use minicbor::decode::{self, Decode, Decoder};
use minicbor::encode::{self, Encode, Encoder, Write};

use super::EffectId;

/// The most ids that a set may hold in its encoded form: 2^24.
pub const MAX_MEMBERS: usize = 1 << 24;

const RUNS: u8 = 0;
const BITMAP: u8 = 1;
const GAPS: u8 = 2;

/// A set of ids, ascending.
///
/// Encoding refuses more than [`MAX_MEMBERS`] ids. Decoding refuses the same, and whatever the
/// format does not allow; it allocates for ids that it has seen, never for a length that is claimed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct MemberSet {
    ids: Vec<u64>,
}

impl MemberSet {
    /// The set of `ids`, which the caller has sorted. That is checked in linear time: ids out of
    /// order or given twice are put right.
    pub fn from_sorted(ids: Vec<u64>) -> Self {
        if ids.is_sorted_by(|left, right| left < right) {
            return Self { ids };
        }
        Self::from_unsorted(ids)
    }

    /// The set of `ids`, in any order and given any number of times.
    pub fn from_unsorted(mut ids: Vec<u64>) -> Self {
        ids.sort_unstable();
        ids.dedup();
        Self { ids }
    }

    /// The effects, ascending.
    pub fn iter(&self) -> impl Iterator<Item = EffectId> + '_ {
        self.ids.iter().copied().map(EffectId)
    }

    /// The ids, ascending.
    pub fn as_slice(&self) -> &[u64] {
        &self.ids
    }

    /// The ids, ascending.
    pub fn into_vec(self) -> Vec<u64> {
        self.ids
    }

    /// Number of ids.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there is no id in the set.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Whether the effect is in the set; costs the logarithm of its size.
    pub fn contains(&self, effect: EffectId) -> bool {
        self.ids.binary_search(&effect.0).is_ok()
    }
}

impl From<Vec<EffectId>> for MemberSet {
    fn from(effects: Vec<EffectId>) -> Self {
        Self::from_sorted(effects.into_iter().map(|effect| effect.0).collect())
    }
}

impl<C> Encode<C> for MemberSet {
    fn encode<W: Write>(
        &self,
        encoder: &mut Encoder<W>,
        _: &mut C,
    ) -> Result<(), encode::Error<W::Error>> {
        if self.ids.len() > MAX_MEMBERS {
            return Err(encode::Error::message("a member set holds more than 2^24 ids"));
        }
        let mut runs = Vec::new();
        for (gap, more) in Runs::of(&self.ids) {
            write_number(&mut runs, gap);
            write_number(&mut runs, more);
        }
        let gaps_size = gaps_of(&self.ids).map(number_size).sum::<u64>();
        let span = match (self.ids.first(), self.ids.last()) {
            (Some(first), Some(last)) => Some((*first, (last - first) / 8 + 1)),
            _ => None,
        };
        let runs_size = string_size(runs.len() as u64);
        let bitmap_size = span
            .map_or(u64::MAX, |(first, bytes)| head_size(first).saturating_add(string_size(bytes)));
        let gaps_size = string_size(gaps_size);
        if runs_size <= bitmap_size && runs_size <= gaps_size {
            encoder.array(2)?.u8(RUNS)?.bytes(&runs)?;
        } else if let Some((first, _)) = span.filter(|_| bitmap_size <= gaps_size) {
            encoder.array(3)?.u8(BITMAP)?.u64(first)?.bytes(&bitmap_of(first, &self.ids))?;
        } else {
            let mut gaps = Vec::new();
            gaps_of(&self.ids).for_each(|gap| write_number(&mut gaps, gap));
            encoder.array(2)?.u8(GAPS)?.bytes(&gaps)?;
        }
        Ok(())
    }
}

impl<'b, C> Decode<'b, C> for MemberSet {
    fn decode(decoder: &mut Decoder<'b>, _: &mut C) -> Result<Self, decode::Error> {
        let start = decoder.position();
        let fields = decoder.array()?;
        let form = decoder.u8()?;
        let ids = match (form, fields) {
            (RUNS, Some(2)) => read_runs(decoder.bytes()?),
            (BITMAP, Some(3)) => read_bitmap(decoder.u64()?, decoder.bytes()?),
            (GAPS, Some(2)) => read_gaps(decoder.bytes()?),
            _ => Err("a member set of an unknown form"),
        };
        match ids {
            Ok(ids) => Ok(Self { ids }),
            Err(problem) => Err(decode::Error::message(problem).at(start)),
        }
    }
}

/// Gap and length less one of each run.
struct Runs<'a> {
    rest: &'a [u64],
    /// The smallest id with which the next run can begin.
    next: u64,
}

impl<'a> Runs<'a> {
    fn of(ids: &'a [u64]) -> Self {
        Self { rest: ids, next: 0 }
    }
}

impl Iterator for Runs<'_> {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<Self::Item> {
        let first = *self.rest.first()?;
        let joined = self.rest.windows(2).take_while(|pair| pair[1] - pair[0] == 1).count();
        let last = self.rest[joined];
        let gap = first - self.next;
        // After the last run nothing is read of it, so that it may stay at the end of the range.
        self.next = last.saturating_add(2);
        self.rest = &self.rest[joined + 1..];
        Some((gap, last - first))
    }
}

fn gaps_of(ids: &[u64]) -> impl Iterator<Item = u64> {
    let first = ids.first().copied().into_iter();
    first.chain(ids.windows(2).map(|pair| pair[1] - pair[0] - 1))
}

/// The caller has compared sizes: the span is not longer than a few bytes per id.
fn bitmap_of(first: u64, ids: &[u64]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut at = 0;
    let mut byte = 0;
    for place in ids.iter().map(|id| id - first) {
        while at < place / 8 {
            bytes.push(byte);
            byte = 0;
            at += 1;
        }
        byte |= 1 << (place % 8);
    }
    bytes.push(byte);
    bytes
}

const TOO_MANY: &str = "a member set of more than 2^24 ids";
const BEYOND: &str = "a member set with an id beyond 64 bits";

fn read_runs(bytes: &[u8]) -> Result<Vec<u64>, &'static str> {
    let mut rest = bytes;
    let mut ids: Vec<u64> = Vec::new();
    while !rest.is_empty() {
        let gap = read_number(&mut rest)?;
        let more = read_number(&mut rest)?;
        let first = match ids.last() {
            None => gap,
            Some(last) => {
                last.checked_add(2).and_then(|next| next.checked_add(gap)).ok_or(BEYOND)?
            }
        };
        let last = first.checked_add(more).ok_or(BEYOND)?;
        if more >= (MAX_MEMBERS - ids.len()) as u64 {
            return Err(TOO_MANY);
        }
        ids.extend(first..=last);
    }
    Ok(ids)
}

fn read_bitmap(first: u64, bytes: &[u8]) -> Result<Vec<u64>, &'static str> {
    let (Some(lowest), Some(highest)) = (bytes.first(), bytes.last()) else {
        return Err("a member set with an empty bitmap");
    };
    if lowest & 1 == 0 || *highest == 0 {
        return Err("a member set with a bitmap that is longer than its ids");
    }
    let span = (bytes.len() as u64 - 1) * 8 + u64::from(7 - highest.leading_zeros());
    first.checked_add(span).ok_or(BEYOND)?;
    let count: u64 = bytes.iter().map(|byte| u64::from(byte.count_ones())).sum();
    if count > MAX_MEMBERS as u64 {
        return Err(TOO_MANY);
    }
    let mut ids = Vec::new();
    for (place, &byte) in (0u64..).step_by(8).zip(bytes) {
        let mut left = byte;
        while left != 0 {
            ids.push(first + place + u64::from(left.trailing_zeros()));
            left &= left - 1;
        }
    }
    Ok(ids)
}

fn read_gaps(bytes: &[u8]) -> Result<Vec<u64>, &'static str> {
    let mut rest = bytes;
    let mut ids: Vec<u64> = Vec::new();
    while !rest.is_empty() {
        let gap = read_number(&mut rest)?;
        let id = match ids.last() {
            None => gap,
            Some(last) => {
                last.checked_add(1).and_then(|next| next.checked_add(gap)).ok_or(BEYOND)?
            }
        };
        if ids.len() == MAX_MEMBERS {
            return Err(TOO_MANY);
        }
        ids.push(id);
    }
    Ok(ids)
}

fn write_number(bytes: &mut Vec<u8>, number: u64) {
    let mut left = number;
    while left >= 0x80 {
        bytes.push((left & 0x7f) as u8 | 0x80);
        left >>= 7;
    }
    bytes.push((left & 0x7f) as u8);
}

fn read_number(rest: &mut &[u8]) -> Result<u64, &'static str> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let Some((&byte, later)) = rest.split_first() else {
            return Err("a member set with a number cut short");
        };
        *rest = later;
        let bits = u64::from(byte & 0x7f);
        if shift == 63 && bits > 1 {
            return Err(BEYOND);
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            if byte == 0 && shift > 0 {
                return Err("a member set with a number that is longer than needed");
            }
            return Ok(number);
        }
    }
    Err(BEYOND)
}

/// Bytes that [`write_number`] writes.
fn number_size(number: u64) -> u64 {
    u64::from((64 - (number | 1).leading_zeros()).div_ceil(7))
}

/// Bytes of the head of a CBOR item with the argument `argument`.
fn head_size(argument: u64) -> u64 {
    match argument {
        0..=23 => 1,
        24..=0xff => 2,
        0x100..=0xffff => 3,
        0x1_0000..=0xffff_ffff => 5,
        _ => 9,
    }
}

fn string_size(len: u64) -> u64 {
    head_size(len).saturating_add(len)
}

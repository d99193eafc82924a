//! Whether a data file that ends before its last page lacks anything.
//!
//! A transaction may take a page at the end of the file and give it back before it commits. LMDB
//! then counts the page but never writes it, so a file can be short and whole: exactly when every
//! page beyond its end is in the table of free pages. That table is read by hand here, since
//! nothing may be mapped yet.
//!
//! Layout (LMDB 0.9, 64 bits, the machine's byte order). A page: number u64, padding u16,
//! flags u16, lower and upper bound u16 each, then the offsets of its nodes, u16 each. A node:
//! low and high half of the data's length u16 each, flags u16, key length u16, key, data; in a
//! branch the first three hold the child's page number. A value is a count and as many page
//! numbers, u64 each.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;

use super::meta_page::MetaPage;

const BRANCH: u16 = 0x01;
const LEAF: u16 = 0x02;
const OVERFLOW: u16 = 0x04;
/// The node's data is the number of the page where it begins.
const BIG_DATA: u16 = 0x01;
const NO_PAGE: u64 = u64::MAX;
/// A gap of more pages is no page given back: no batch is that large.
const MAX_MISSING: u64 = 1 << 16;
const HEADER_BYTES: usize = 16;

/// Whether every page beyond `have` bytes is free. Anything unreadable counts as no.
pub(super) fn cover_tail(file: &File, meta: &MetaPage, have: u64) -> bool {
    let first_missing = have / u64::from(meta.page_size_bytes);
    if meta.last_page - first_missing.min(meta.last_page) >= MAX_MISSING {
        return false;
    }
    let mut missing: BTreeSet<u64> = (first_missing..=meta.last_page).collect();
    let mut walk = Walk { file, meta, have, to_visit: vec![meta.free_root], pages_left: 1 << 16 };
    while let Some(page) = walk.to_visit.pop() {
        if page != NO_PAGE && walk.visit(page, &mut missing).is_none() {
            return false;
        }
    }
    missing.is_empty()
}

struct Walk<'f> {
    file: &'f File,
    meta: &'f MetaPage,
    have: u64,
    to_visit: Vec<u64>,
    /// A damaged tree may lead back into itself; this ends it.
    pages_left: u32,
}

impl Walk<'_> {
    /// Takes a page's free pages out of `missing`, or remembers its children.
    fn visit(&mut self, number: u64, missing: &mut BTreeSet<u64>) -> Option<()> {
        self.pages_left = self.pages_left.checked_sub(1)?;
        let page = self.read(number, u64::from(self.meta.page_size_bytes))?;
        let flags = u16_at(&page, 10)?;
        let nodes = usize::from(u16_at(&page, 12)?).checked_sub(HEADER_BYTES)? / 2;
        for node in 0..nodes {
            let at = usize::from(u16_at(&page, HEADER_BYTES + 2 * node)?);
            let (low, high) = (u16_at(&page, at)?, u16_at(&page, at + 2)?);
            let node_flags = u16_at(&page, at + 4)?;
            let length = u64::from(low) | u64::from(high) << 16;
            if flags & BRANCH != 0 {
                self.to_visit.push(length | u64::from(node_flags) << 32);
                continue;
            }
            if flags & LEAF == 0 {
                return None;
            }
            let data = at + 8 + usize::from(u16_at(&page, at + 6)?);
            let length = usize::try_from(length).ok()?;
            if node_flags & BIG_DATA == 0 {
                remove_all(page.get(data..data + length)?, missing)?;
            } else {
                let first = u64_at(&page, data)?;
                let big = self.read(first, (HEADER_BYTES + length) as u64)?;
                if u16_at(&big, 10)? & OVERFLOW == 0 {
                    return None;
                }
                remove_all(&big[HEADER_BYTES..], missing)?;
            }
        }
        Some(())
    }

    fn read(&self, number: u64, length: u64) -> Option<Vec<u8>> {
        let at = number.checked_mul(u64::from(self.meta.page_size_bytes))?;
        if at.checked_add(length)? > self.have {
            return None;
        }
        let mut bytes = vec![0; usize::try_from(length).ok()?];
        self.file.read_exact_at(&mut bytes, at).ok()?;
        (u64_at(&bytes, 0)? == number).then_some(bytes)
    }
}

fn remove_all(list: &[u8], missing: &mut BTreeSet<u64>) -> Option<()> {
    let count = usize::try_from(u64_at(list, 0)?).ok()?;
    for index in 1..=count {
        missing.remove(&u64_at(list, index.checked_mul(8)?)?);
    }
    Some(())
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

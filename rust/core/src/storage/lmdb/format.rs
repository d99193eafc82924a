//! The format record: one row of the table meta, a CBOR map with text keys.
//!
//! Keys that a program does not know are skipped, so that a later version can add some that old
//! ones may ignore. The record is written once and never again.

use minicbor::data::Type;
use minicbor::decode::Error as DecodeError;
use minicbor::encode::Error as EncodeError;
use minicbor::{Decoder, Encoder};

use crate::storage::{FormatRecord, SegmentLimits, StorageError};

/// The row's key.
pub(super) const FORMAT_KEY: &[u8] = b"storage.format";
/// The format that this program writes.
pub(super) const FORMAT_VERSION: u32 = 0;

const MAGIC: &str = "effectstore";

/// The row's value.
pub(super) fn encode(format: &FormatRecord) -> Result<Vec<u8>, StorageError> {
    write(format).map_err(|e| StorageError::Io {
        op: "encode the format record".to_owned(),
        source: e.to_string(),
    })
}

// Keys are in the order of deterministic CBOR: shorter ones first, then by their bytes.
fn write(format: &FormatRecord) -> Result<Vec<u8>, EncodeError<std::convert::Infallible>> {
    let mut encoder = Encoder::new(Vec::new());
    encoder
        .map(12)?
        .str("magic")?
        .str(MAGIC)?
        .str("version")?
        .u32(format.version)?
        .str("store_id")?
        .bytes(&format.store_id)?
        .str("created_ms")?
        .u64(format.created_ms)?
        .str("min_reader")?
        .u32(format.min_reader)?
        .str("min_writer")?
        .u32(format.min_writer)?
        .str("little_endian")?
        .bool(format.little_endian)?
        .str("segment_bytes")?
        .u64(format.segments.bytes)?
        .str("map_size_bytes")?
        .u64(format.map_size_bytes)?
        .str("page_size_bytes")?
        .u32(format.page_size_bytes)?
        .str("segment_records")?
        .u64(format.segments.records)?
        .str("lmdb_data_version")?
        .u32(format.lmdb_data_version)?;
    Ok(encoder.into_writer())
}

/// Reads the row's value.
///
/// # Errors
/// [`StorageError::Format`] if it is no format record, or one that lacks something.
pub(super) fn decode(bytes: &[u8]) -> Result<FormatRecord, StorageError> {
    let fields =
        read(bytes).map_err(|e| refused(format!("the format record is unreadable: {e}")))?;
    if fields.magic.as_deref() != Some(MAGIC) {
        return Err(refused("the format record is not effectstore's".to_owned()));
    }
    let missing = |name: &str| refused(format!("the format record lacks `{name}`"));
    Ok(FormatRecord {
        version: fields.version.ok_or_else(|| missing("version"))?,
        min_reader: fields.min_reader.ok_or_else(|| missing("min_reader"))?,
        min_writer: fields.min_writer.ok_or_else(|| missing("min_writer"))?,
        lmdb_data_version: fields.lmdb_data_version.ok_or_else(|| missing("lmdb_data_version"))?,
        page_size_bytes: fields.page_size_bytes.ok_or_else(|| missing("page_size_bytes"))?,
        little_endian: fields.little_endian.ok_or_else(|| missing("little_endian"))?,
        map_size_bytes: fields.map_size_bytes.ok_or_else(|| missing("map_size_bytes"))?,
        segments: SegmentLimits {
            records: fields.segment_records.ok_or_else(|| missing("segment_records"))?,
            bytes: fields.segment_bytes.ok_or_else(|| missing("segment_bytes"))?,
        },
        store_id: fields.store_id.ok_or_else(|| missing("store_id"))?,
        created_ms: fields.created_ms.ok_or_else(|| missing("created_ms"))?,
    })
}

#[derive(Default)]
struct Fields {
    magic: Option<String>,
    version: Option<u32>,
    min_reader: Option<u32>,
    min_writer: Option<u32>,
    lmdb_data_version: Option<u32>,
    page_size_bytes: Option<u32>,
    little_endian: Option<bool>,
    map_size_bytes: Option<u64>,
    segment_records: Option<u64>,
    segment_bytes: Option<u64>,
    store_id: Option<[u8; 16]>,
    created_ms: Option<u64>,
}

fn read(bytes: &[u8]) -> Result<Fields, DecodeError> {
    let mut decoder = Decoder::new(bytes);
    let mut fields = Fields::default();
    let count = decoder.map()?.ok_or_else(|| DecodeError::message("a map without a length"))?;
    for _ in 0..count {
        if decoder.datatype()? != Type::String {
            decoder.skip()?;
            decoder.skip()?;
            continue;
        }
        match decoder.str()? {
            "magic" => fields.magic = Some(decoder.str()?.to_owned()),
            "version" => fields.version = Some(decoder.u32()?),
            "min_reader" => fields.min_reader = Some(decoder.u32()?),
            "min_writer" => fields.min_writer = Some(decoder.u32()?),
            "lmdb_data_version" => fields.lmdb_data_version = Some(decoder.u32()?),
            "page_size_bytes" => fields.page_size_bytes = Some(decoder.u32()?),
            "little_endian" => fields.little_endian = Some(decoder.bool()?),
            "map_size_bytes" => fields.map_size_bytes = Some(decoder.u64()?),
            "segment_records" => fields.segment_records = Some(decoder.u64()?),
            "segment_bytes" => fields.segment_bytes = Some(decoder.u64()?),
            "store_id" => fields.store_id = decoder.bytes()?.try_into().ok(),
            "created_ms" => fields.created_ms = Some(decoder.u64()?),
            _ => decoder.skip()?,
        }
    }
    Ok(fields)
}

/// Refuses a store that this program may not use.
pub(super) fn check(format: &FormatRecord, read_only: bool) -> Result<(), StorageError> {
    let needed = if read_only { format.min_reader } else { format.min_writer };
    if needed > FORMAT_VERSION {
        return Err(refused(format!(
            "the store needs a program of format {needed} and this one has {FORMAT_VERSION}"
        )));
    }
    if format.segments.records == 0 || format.segments.bytes == 0 {
        return Err(refused("the format record has segments of size zero".to_owned()));
    }
    Ok(())
}

const fn refused(reason: String) -> StorageError {
    StorageError::Format { reason }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn example() -> FormatRecord {
        FormatRecord {
            version: 0,
            min_reader: 0,
            min_writer: 0,
            lmdb_data_version: 1,
            page_size_bytes: 4096,
            little_endian: true,
            map_size_bytes: 1 << 40,
            segments: SegmentLimits::default(),
            store_id: *b"sixteen bytes id",
            created_ms: 1_796_000_000_000,
        }
    }

    #[test]
    fn a_record_comes_back() {
        assert_eq!(decode(&encode(&example()).unwrap()).unwrap(), example());
    }

    #[test]
    fn keys_are_in_the_order_of_deterministic_cbor() {
        let bytes = encode(&example()).unwrap();
        let mut decoder = Decoder::new(&bytes);
        let mut keys = Vec::new();
        for _ in 0..decoder.map().unwrap().unwrap() {
            let key = decoder.str().unwrap();
            keys.push((key.len(), key));
            decoder.skip().unwrap();
        }
        assert_eq!(decoder.position(), bytes.len());
        assert!(keys.is_sorted());
    }

    #[test]
    fn unknown_keys_are_skipped_and_a_missing_one_is_named() {
        let known = encode(&example()).unwrap();
        // One more pair in the map's head, and the pair at its end.
        let mut more = known.clone();
        more[0] += 1;
        more.extend(minicbor::to_vec("later").unwrap());
        more.extend(minicbor::to_vec([1, 2, 3]).unwrap());
        assert_eq!(decode(&more).unwrap(), example());
        let at = known.windows(7).position(|name| name == b"version").unwrap();
        let mut renamed = known;
        renamed[at] = b'V';
        let refused = decode(&renamed).unwrap_err();
        assert!(refused.to_string().contains("`version`"), "{refused}");
    }

    #[test]
    fn every_cut_and_flip_is_refused_or_read_without_a_panic() {
        let bytes = encode(&example()).unwrap();
        for length in 0..bytes.len() {
            assert!(decode(&bytes[..length]).is_err());
        }
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let _ = decode(&flipped);
        }
    }

    #[test]
    fn newer_stores_are_refused_by_what_they_ask_for() {
        let newer = FormatRecord { version: 9, min_writer: 1, ..example() };
        assert!(check(&newer, false).is_err());
        assert_eq!(check(&newer, true), Ok(()));
        assert!(check(&FormatRecord { min_reader: 1, ..newer }, true).is_err());
    }
}

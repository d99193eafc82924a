//! Finding the payloads of a record without knowing its kind.

use minicbor::decode::{Decoder, Error};

use crate::model::{PAYLOAD_TAG, PayloadRef};

/// The payload references of a header, in the order in which they first appear.
///
/// The items of CBOR lie one after the other, containers before what they hold. So one pass from head
/// to head meets every tag, and nothing is entered or left.
///
/// # Errors
/// Where the bytes are no CBOR, or a marked place is no payload reference.
pub fn payload_refs(header: &[u8]) -> Result<Vec<PayloadRef>, Error> {
    let mut refs: Vec<PayloadRef> = Vec::new();
    let mut place = 0;
    while place < header.len() {
        let Head { kind, argument, end } = head(header, place)?;
        place = match kind {
            TAG if argument == PAYLOAD_TAG => {
                let mut decoder = Decoder::new(header);
                decoder.set_position(place);
                let found: PayloadRef = decoder.decode()?;
                if !refs.contains(&found) {
                    refs.push(found);
                }
                decoder.position()
            }
            BYTES | TEXT => {
                let after = usize::try_from(argument).ok().and_then(|len| end.checked_add(len));
                after.filter(|after| *after <= header.len()).ok_or_else(Error::end_of_input)?
            }
            _ => end,
        };
    }
    Ok(refs)
}

const BYTES: u8 = 2;
const TEXT: u8 = 3;
const TAG: u8 = 6;

/// The head of an item.
struct Head {
    /// Its major type.
    kind: u8,
    /// Its argument; 0 where it has none.
    argument: u64,
    /// Where it ends.
    end: usize,
}

/// The head at a place (RFC 8949, section 3). A string of unknown length is the strings that follow it.
fn head(bytes: &[u8], place: usize) -> Result<Head, Error> {
    let first = bytes[place];
    let (kind, low) = (first >> 5, first & 0x1f);
    let size = match low {
        0..=23 => return Ok(Head { kind, argument: low.into(), end: place + 1 }),
        24..=27 => 1_usize << (low - 24),
        31 => return Ok(Head { kind, argument: 0, end: place + 1 }),
        _ => return Err(Error::message("a head of CBOR that means nothing").at(place)),
    };
    let end = place + 1 + size;
    let argument = bytes.get(place + 1..end).ok_or_else(Error::end_of_input)?;
    let argument = argument.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
    Ok(Head { kind, argument, end })
}

#[cfg(test)]
mod tests {
    use minicbor::Encoder;
    use proptest::prelude::*;

    use super::*;

    /// The references of all items, found by the library's own walk.
    fn walked(header: &[u8]) -> Vec<PayloadRef> {
        let mut refs: Vec<PayloadRef> = Vec::new();
        for token in 0..header.len() {
            let mut decoder = Decoder::new(header);
            let mut left = token;
            while left > 0 && decoder.position() < header.len() {
                step(&mut decoder);
                left -= 1;
            }
            let before = decoder.position();
            if before < header.len() && decoder.tag().is_ok_and(|tag| tag.as_u64() == PAYLOAD_TAG) {
                decoder.set_position(before);
                if let Ok(found) = decoder.decode::<PayloadRef>()
                    && !refs.contains(&found)
                {
                    refs.push(found);
                }
            }
        }
        refs
    }

    /// Goes into containers and over everything else.
    fn step(decoder: &mut Decoder<'_>) {
        use minicbor::data::Type;
        let stepped = match decoder.datatype() {
            Ok(Type::Tag) => decoder.tag().map(|_| ()),
            Ok(Type::Array) => decoder.array().map(|_| ()),
            Ok(Type::Map) => decoder.map().map(|_| ()),
            _ => decoder.skip(),
        };
        assert!(stepped.is_ok(), "{stepped:?}");
    }

    #[derive(Clone, Debug)]
    enum Item {
        Number(u64),
        Text(String),
        Bytes(Vec<u8>),
        Reference(Vec<u8>),
        Tagged(u64, Box<Item>),
        Nothing,
        List(Vec<Item>),
    }

    fn item() -> impl Strategy<Value = Item> {
        let leaf = prop_oneof![
            any::<u64>().prop_map(Item::Number),
            ".{0,40}".prop_map(Item::Text),
            prop::collection::vec(any::<u8>(), 0..300).prop_map(Item::Bytes),
            prop::collection::vec(any::<u8>(), 0..3).prop_map(Item::Reference),
            Just(Item::Nothing),
        ];
        leaf.prop_recursive(4, 40, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..30).prop_map(Item::List),
                (0..u64::MAX, inner).prop_map(|(tag, item)| Item::Tagged(tag, Box::new(item))),
            ]
        })
    }

    fn write(item: &Item, encoder: &mut Encoder<&mut Vec<u8>>) {
        let written = match item {
            Item::Number(number) => encoder.u64(*number).map(|_| ()),
            Item::Text(text) => encoder.str(text).map(|_| ()),
            Item::Bytes(bytes) => encoder.bytes(bytes).map(|_| ()),
            Item::Reference(bytes) => encoder.encode(PayloadRef::of(bytes)).map(|_| ()),
            Item::Nothing => encoder.null().map(|_| ()),
            Item::Tagged(tag, item) => {
                let tag = if *tag == PAYLOAD_TAG { 1 } else { *tag };
                let head = encoder.tag(minicbor::data::Tag::new(tag)).map(|_| ());
                write(item, encoder);
                head
            }
            Item::List(items) => {
                let head = encoder.array(items.len() as u64).map(|_| ());
                for item in items {
                    write(item, encoder);
                }
                head
            }
        };
        assert!(written.is_ok());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn every_reference_is_found_and_nothing_else(item in item()) {
            let mut bytes = Vec::new();
            write(&item, &mut Encoder::new(&mut bytes));
            prop_assert_eq!(payload_refs(&bytes).ok(), Some(walked(&bytes)));
        }

        #[test]
        fn bytes_that_are_no_cbor_are_refused_or_passed_over(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let _ = payload_refs(&bytes);
        }
    }

    #[test]
    fn a_string_that_is_cut_short_is_an_error() {
        for bytes in [
            &[0x45_u8, 1, 2][..],
            &[0x1a, 0, 0],
            &[0x5b, 255, 255, 255, 255, 255, 255, 255, 255],
            &[0x1c],
        ] {
            assert!(payload_refs(bytes).is_err(), "{bytes:?}");
        }
    }
}

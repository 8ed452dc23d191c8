//! Protobuf's wire format: messages by field number, within limits, without a generator.
//!
//! A part of two bytes becomes a structure of several hundred, so a small hostile file could fill the memory: parts and nesting are
//! counted while they are read.

/// Nodes, attributes, tensors and other parts of a file.
const MOST_PARTS: usize = 1 << 20;
/// Messages inside messages; a graph inside a graph takes three.
const MOST_DEPTH: usize = 64;

type Result<T> = std::result::Result<T, String>;

/// Bytes that are not text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blob(pub Vec<u8>);

/// A field's value as it stands in a file.
#[derive(Clone, Copy)]
pub enum Wire<'b> {
    /// A number of variable length.
    Varint(u64),
    /// Eight bytes.
    Fixed64(u64),
    /// A text, a message or a packed list.
    Bytes(&'b [u8]),
    /// Four bytes.
    Fixed32(u32),
}

/// What a file has used up so far.
#[derive(Default)]
pub struct Used {
    parts: usize,
    depth: usize,
}

/// What a field can hold.
pub trait Field: Default {
    /// How numbers stand behind each other in a packed list; messages, text and bytes are never packed.
    const PACKED: Option<u64> = None;

    /// Takes one value from a file: the last one counts, lists take all.
    fn merge(&mut self, wire: Wire<'_>, used: &mut Used) -> Result<()>;

    /// Writes the field, unless it is what an absent field means.
    fn write(&self, number: u64, out: &mut Vec<u8>);
}

fn split<'b>(bytes: &mut &'b [u8], length: u64) -> Result<&'b [u8]> {
    let cut = || "it ends in the middle of a field".to_owned();
    let (content, rest) = bytes.split_at_checked(usize::try_from(length).map_err(|_| cut())?).ok_or_else(cut)?;
    *bytes = rest;
    Ok(content)
}

fn varint(bytes: &mut &[u8]) -> Result<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = split(bytes, 1)?[0];
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err("it is damaged: a number has more than 64 bits".to_owned())
}

fn value<'b>(kind: u64, bytes: &mut &'b [u8]) -> Result<Wire<'b>> {
    let fixed = |bytes: &[u8]| bytes.iter().rev().fold(0, |all, &byte| all << 8 | u64::from(byte));
    Ok(match kind {
        0 => Wire::Varint(varint(bytes)?),
        1 => Wire::Fixed64(fixed(split(bytes, 8)?)),
        2 => {
            let length = varint(bytes)?;
            Wire::Bytes(split(bytes, length)?)
        }
        5 => Wire::Fixed32(fixed(split(bytes, 4)?) as u32),
        _ => return Err("it is damaged: a field has an unknown kind".to_owned()),
    })
}

/// Hands over the fields of a message.
pub fn fields<'b>(
    mut bytes: &'b [u8],
    used: &mut Used,
    mut see: impl FnMut(u64, Wire<'b>, &mut Used) -> Result<()>,
) -> Result<()> {
    used.depth += 1;
    if used.depth > MOST_DEPTH {
        return Err(format!("its parts are nested more than {MOST_DEPTH} deep"));
    }
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        let wire = value(key & 7, &mut bytes)?;
        see(key >> 3, wire, used)?;
    }
    used.depth -= 1;
    Ok(())
}

fn push_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Writes a field of bytes.
pub fn push_bytes(number: u64, bytes: &[u8], out: &mut Vec<u8>) {
    push_varint(number << 3 | 2, out);
    push_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

fn unexpected<T>() -> Result<T> {
    Err("it is damaged: a field holds a value of another kind".to_owned())
}

macro_rules! numbers {
    ($($type:ty: $variant:ident $kind:literal, $from:expr, $push:expr;)*) => {$(
        impl Field for $type {
            const PACKED: Option<u64> = Some($kind);

            fn merge(&mut self, wire: Wire<'_>, _: &mut Used) -> Result<()> {
                let Wire::$variant(bits) = wire else { return unexpected() };
                *self = $from(bits);
                Ok(())
            }

            fn write(&self, number: u64, out: &mut Vec<u8>) {
                push_varint(number << 3 | $kind, out);
                $push(*self, out);
            }
        }
    )*};
}

numbers! {
    i64: Varint 0, |bits| bits as i64, |value: i64, out: &mut Vec<u8>| push_varint(value as u64, out);
    i32: Varint 0, |bits| bits as i32, |value: i32, out: &mut Vec<u8>| push_varint(i64::from(value) as u64, out);
    u64: Varint 0, |bits| bits, push_varint;
    f32: Fixed32 5, f32::from_bits, |value: f32, out: &mut Vec<u8>| out.extend(value.to_le_bytes());
    f64: Fixed64 1, f64::from_bits, |value: f64, out: &mut Vec<u8>| out.extend(value.to_le_bytes());
}

impl Field for String {
    fn merge(&mut self, wire: Wire<'_>, _: &mut Used) -> Result<()> {
        let Wire::Bytes(bytes) = wire else { return unexpected() };
        *self = String::from_utf8(bytes.to_vec()).map_err(|_| "it is damaged: a name is not UTF-8".to_owned())?;
        Ok(())
    }

    fn write(&self, number: u64, out: &mut Vec<u8>) {
        push_bytes(number, self.as_bytes(), out);
    }
}

impl Field for Blob {
    fn merge(&mut self, wire: Wire<'_>, _: &mut Used) -> Result<()> {
        let Wire::Bytes(bytes) = wire else { return unexpected() };
        self.0 = bytes.to_vec();
        Ok(())
    }

    fn write(&self, number: u64, out: &mut Vec<u8>) {
        push_bytes(number, &self.0, out);
    }
}

impl<T: Field> Field for Option<T> {
    fn merge(&mut self, wire: Wire<'_>, used: &mut Used) -> Result<()> {
        self.get_or_insert_default().merge(wire, used)
    }

    fn write(&self, number: u64, out: &mut Vec<u8>) {
        if let Some(value) = self {
            value.write(number, out);
        }
    }
}

impl<T: Field> Field for Box<T> {
    fn merge(&mut self, wire: Wire<'_>, used: &mut Used) -> Result<()> {
        (**self).merge(wire, used)
    }

    fn write(&self, number: u64, out: &mut Vec<u8>) {
        (**self).write(number, out);
    }
}

impl<T: Field> Field for Vec<T> {
    fn merge(&mut self, wire: Wire<'_>, used: &mut Used) -> Result<()> {
        let mut push = |wire, used: &mut Used| {
            let mut item = T::default();
            item.merge(wire, used)?;
            self.push(item);
            Ok(())
        };
        match (T::PACKED, wire) {
            (Some(kind), Wire::Bytes(mut bytes)) => {
                while !bytes.is_empty() {
                    push(value(kind, &mut bytes)?, used)?;
                }
                Ok(())
            }
            (None, wire) => {
                used.parts += 1;
                if used.parts > MOST_PARTS {
                    return Err(format!("it has more than {MOST_PARTS} parts"));
                }
                push(wire, used)
            }
            (Some(_), wire) => push(wire, used),
        }
    }

    fn write(&self, number: u64, out: &mut Vec<u8>) {
        self.iter().for_each(|item| item.write(number, out));
    }
}

/// Reads a message from a whole file.
pub fn read<M: Field>(bytes: &[u8]) -> Result<M> {
    let mut message = M::default();
    message.merge(Wire::Bytes(bytes), &mut Used::default())?;
    Ok(message)
}

macro_rules! message {
    ($($(#[$doc:meta])* $name:ident { $($number:literal $field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct $name {
            $(pub $field: $type,)*
        }

        impl $crate::wire::Field for $name {
            fn merge(
                &mut self,
                wire: $crate::wire::Wire<'_>,
                used: &mut $crate::wire::Used,
            ) -> Result<(), String> {
                let $crate::wire::Wire::Bytes(bytes) = wire else {
                    return Err("it is damaged: a number stands in the place of a part".to_owned());
                };
                $crate::wire::fields(bytes, used, |number, wire, used| match number {
                    $($number => $crate::wire::Field::merge(&mut self.$field, wire, used),)*
                    _ => Ok(()),
                })
            }

            fn write(&self, number: u64, out: &mut Vec<u8>) {
                $crate::wire::push_bytes(number, &self.to_bytes(), out);
            }
        }

        impl $name {
            /// The message in the wire format.
            pub fn to_bytes(&self) -> Vec<u8> {
                let mut out = Vec::new();
                $(if self.$field != <$type>::default() {
                    $crate::wire::Field::write(&self.$field, $number, &mut out);
                })*
                out
            }
        }
    )*};
}

pub(crate) use message;

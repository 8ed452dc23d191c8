//! Random damage, the same for a seed. The tests of netcl-trainer use it as well.

use serde_json::Value;

/// Xorshift: damage needs no better numbers.
pub(crate) struct Damage(u64);

/// Numbers that lengths, counts and offsets are replaced by.
const NUMBERS: [u64; 14] = [
    0,
    1,
    2,
    255,
    65_535,
    65_536,
    1 << 20,
    1 << 24,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 40,
    i64::MAX as u64,
    u64::MAX,
];

impl Damage {
    pub(crate) fn new(seed: u64) -> Damage {
        Damage(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound.max(1)
    }

    fn number(&mut self) -> u64 {
        NUMBERS[self.below(NUMBERS.len())]
    }

    /// One to four changes: bits and bytes flipped, numbers of every width replaced, also those written as text, parts removed,
    /// repeated, moved to the end, the end cut off, something appended.
    pub(crate) fn bytes(&mut self, content: &[u8]) -> Vec<u8> {
        let mut content = content.to_vec();
        for _ in 0..1 + self.below(4) {
            let length = content.len();
            let at = self.below(length);
            let end = at + self.below((length - at).min(64) + 1);
            match self.below(10) {
                _ if length == 0 => content.push(self.below(256) as u8),
                0 => content[at] ^= 1 << self.below(8),
                1 => content[at] = [0, 1, 127, 128, 255][self.below(5)],
                2 | 3 => {
                    let (number, width) = (self.number(), [1, 2, 4, 8][self.below(4)]);
                    let bytes = if self.below(2) == 0 {
                        number.to_le_bytes()[..width].to_vec()
                    } else {
                        number.to_be_bytes()[8 - width..].to_vec()
                    };
                    let end = (at + width).min(length);
                    content[at..end].copy_from_slice(&bytes[..end - at]);
                }
                4 => {
                    // A number in a header of text.
                    let is_digit = |byte: &u8| byte.is_ascii_digit();
                    let Some(start) = content[at..].iter().position(is_digit).map(|behind| at + behind) else {
                        continue;
                    };
                    let digits = content[start..].iter().take_while(|byte| is_digit(byte)).count();
                    content.splice(start..start + digits, self.number().to_string().into_bytes());
                }
                9 => content.truncate(at),
                5 => drop(content.drain(at..end)),
                6 => {
                    let part = content[at..end].repeat(1 + self.below(5));
                    content.splice(at..at, part);
                }
                7 => {
                    let part: Vec<u8> = content.drain(at..end).collect();
                    content.extend(part);
                }
                _ => content.extend(vec![self.below(256) as u8; self.below(4096)]),
            }
        }
        content
    }

    /// JSON with one or two of its values replaced.
    pub(crate) fn json(&mut self, value: &Value) -> Value {
        let mut value = value.clone();
        for _ in 0..1 + self.below(2) {
            let mut place = &mut value;
            while self.below(5) > 0 {
                // Borrowed anew in each arm: the checker does not see that an empty list leaves `place` alone.
                let length = match place {
                    Value::Array(items) => items.len(),
                    Value::Object(entries) => entries.len(),
                    _ => 0,
                };
                if length == 0 {
                    break;
                }
                let at = self.below(length);
                place = match place {
                    Value::Array(items) => &mut items[at],
                    Value::Object(entries) => entries.values_mut().nth(at).expect("it is below the length"),
                    _ => unreachable!("only these have a length"),
                };
            }
            *place = match self.below(8) {
                0 => Value::Null,
                1 => self.number().into(),
                2 => (-(self.number() as i64 >> 1)).into(),
                3 => [1e308, -1e308, 1e-308, -0.0, 0.5][self.below(5)].into(),
                4 => "\u{1b}[2J".repeat(self.below(1000)).into(),
                5 => vec![place.clone(); self.below(30)].into(),
                6 => Value::Object(Default::default()),
                _ => true.into(),
            };
        }
        value
    }
}

//! The parameters of `int`, and how a spec names them.

use crate::spec::{Key, Sample, Spec, Value, builders, describe_planes, parse_flag, parse_int};
use octaplex_arch::Affine;

/// Parameters of [`Int`](crate::codecs::Int):
/// `int:bits=4,group=token,asymmetric=false,med=0,rotate=false,seed=0`.
///
/// A block of D values has an f16 scale (and an f16 zero) for each group, then ⌈D·bits/8⌉ bytes of
/// integers. `med` adds ⌈D/32⌉ bytes of flags, and outliers behind the page. That is 2.125 to 10
/// bits a value at D = 128, without outliers.
///
/// ```
/// use octaplex::codecs::IntSpec;
/// use octaplex::CodecSpec;
///
/// assert_eq!(IntSpec::new(4).block_bytes(128), 2 + 64);
/// let grouped: CodecSpec = "int:group=32,asymmetric=true".parse()?;
/// assert_eq!(grouped.bits_per_value(128), 5.0); // not 4.5: four groups of 32, a scale and a zero each
/// # Ok::<(), octaplex::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct IntSpec {
    /// Bits of a code, 2 to 8.
    pub bits: u8,
    /// Values that share a scale: 16, 32 or 64. `None` for all values of a token.
    pub group: Option<u8>,
    /// Whether a group has a zero in addition to its scale.
    pub asymmetric: bool,
    /// Chunks of four values whose norm is above `med` times the page's median stay exact. 0 for
    /// none.
    pub med: u8,
    /// Whether vectors are first rotated by one round of seeded signs and Hadamard transform.
    pub rotate: bool,
    /// Seed of the rotation.
    pub seed: u64,
}

impl Default for IntSpec {
    fn default() -> Self {
        Self::new(4)
    }
}

impl IntSpec {
    /// Creates parameters with `bits` bits a value, 2 to 8. Others are defaults.
    #[must_use]
    pub const fn new(bits: u8) -> Self {
        Self { bits, group: None, asymmetric: false, med: 0, rotate: false, seed: 0 }
    }

    builders! {
        group: Option<u8>;
        asymmetric: bool;
        med: u8;
        rotate: bool;
        seed: u64;
    }

    /// Returns the bytes of a block of `dim` values. 0 for impossible bits, and unless the group
    /// divides `dim`.
    #[must_use]
    pub const fn block_bytes(&self, dim: usize) -> usize {
        match self.affine(dim) {
            Some(affine) => affine.row_bytes() + self.flag_bytes(dim),
            None => 0,
        }
    }

    /// Returns the bytes of the flags, one bit for each chunk of four values.
    pub(super) const fn flag_bytes(&self, dim: usize) -> usize {
        if self.med == 0 { 0 } else { dim.div_ceil(32) }
    }

    /// Returns the layout of a row, or `None` if the parameters are invalid.
    pub(super) const fn affine(&self, dim: usize) -> Option<Affine> {
        let group = match self.group {
            Some(group @ (16 | 32 | 64)) => group as usize,
            Some(_) => return None,
            None => dim,
        };
        if group == 0 || !dim.is_multiple_of(group) || self.bits < 2 || self.bits > 8 {
            return None;
        }
        let offset = if self.asymmetric { 0 } else { 1 << (self.bits - 1) };
        Some(Affine { dim, group, bits: self.bits, asymmetric: self.asymmetric, offset })
    }
}

pub(super) const BITS: Key = Key::new("bits", "2..=8");
pub(super) const GROUP: Key = Key::new("group", "token, 16, 32, 64");

impl Spec for IntSpec {
    const NAME: &'static str = "int";
    const SAMPLES: &'static [Sample] = &[
        ("int", 128),
        ("int:bits=2", 80),
        ("int:bits=3", 112),
        ("int:bits=5,group=16", 64),
        ("int:bits=8", 576),
        ("int:bits=2,group=32,asymmetric=true", 96),
        ("int:group=16,asymmetric=true", 128),
        ("int:bits=6,asymmetric=true", 64),
        ("int:bits=7,group=64", 64),
        ("int:bits=8,asymmetric=true,rotate=true", 80),
        ("int:rotate=true,seed=3", 96),
        ("int:bits=3,group=16,med=1,rotate=true", 80),
    ];
    const SUMMARY: &'static str = "integers with an f16 scale for each token or group";
    const KEYS: &'static [Key] = &[
        BITS,
        GROUP,
        Key::new("asymmetric", "false, true"),
        Key::new("med", "0..=255"),
        Key::new("rotate", "false, true"),
        Key::new("seed", "0..2^64"),
    ];

    fn set(&mut self, key: usize, value: &str) -> Option<()> {
        match key {
            0 => self.bits = parse_int(value, 2..=8)? as u8,
            1 => {
                self.group = match value {
                    "token" => None,
                    "16" | "32" | "64" => value.parse().ok(),
                    _ => return None,
                }
            }
            2 => self.asymmetric = parse_flag(value)?,
            3 => self.med = parse_int(value, 0..=255)? as u8,
            4 => self.rotate = parse_flag(value)?,
            _ => self.seed = parse_int(value, 0..=u64::MAX)?,
        }
        Some(())
    }

    fn get(&self, key: usize) -> Value {
        match key {
            0 => Value::Int(self.bits.into()),
            1 => self.group.map_or(Value::Word("token"), |group| Value::Int(group.into())),
            2 => Value::flag(self.asymmetric),
            3 => Value::Int(self.med.into()),
            4 => Value::flag(self.rotate),
            _ => Value::Int(self.seed),
        }
    }

    fn layout(&self, dim: usize, line: &mut dyn FnMut(usize, &str)) {
        let Some(affine) = self.affine(dim) else { return };
        let header =
            if self.asymmetric { "f16 scale and f16 zero of each group" } else { "f16 scale of each group" };
        line(affine.header_bytes(), header);
        describe_planes(affine.packing(), dim, line);
        if self.med > 0 {
            line(self.flag_bytes(dim), "flags, 1 bit a chunk of four; 8 bytes an outlier behind the page");
        }
    }
}

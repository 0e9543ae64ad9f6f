//! The parameters of `octopus`, and how a spec names them.

use crate::codec::planes::LEAD;
use crate::codec::turboquant::Gain;
use crate::spec::{Key, Sample, Spec, Value, builders, one_of, parse_int};
use octaplex_arch::{Float, Search};

/// The directions that the encoder tries for a triplet. The choice does not change how blocks are
/// decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Rounding {
    /// The centroids that bracket each coordinate, at most four directions. It chooses as `Local3`
    /// does, in half the time.
    #[default]
    Local2,
    /// The nearest centroid of each coordinate and its neighbours, nine directions. The published
    /// encoder.
    Local3,
    /// The nearest centroid of each coordinate, with the radius of the triplet itself.
    Scalar,
    /// Every direction, 4^bdir candidates.
    Full,
}

impl Rounding {
    const NAMES: [(&'static str, Self); 4] =
        [("local2", Self::Local2), ("local3", Self::Local3), ("scalar", Self::Scalar), ("full", Self::Full)];

    pub(crate) const fn search(self) -> Search {
        match self {
            Self::Local2 => Search::Bracket,
            Self::Local3 => Search::Neighbours,
            Self::Scalar => Search::Nearest,
            Self::Full => Search::All,
        }
    }
}

/// The code of the one or two coordinates that are left over unless three divides D.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Tail {
    /// The Lloyd-Max codebook for each, with ⌈(2·bdir + bnrm)/3⌉ bits.
    #[default]
    Scalar,
    /// A triplet filled up with zeros, as published. For D mod 3 = 1 it has five to seven times the
    /// distortion.
    Paper,
}

impl Tail {
    const NAMES: [(&'static str, Self); 2] = [("scalar", Self::Scalar), ("paper", Self::Paper)];
}

/// The type of the norm in a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum NormFormat {
    /// f16, two bytes.
    #[default]
    F16,
    /// f32, four bytes, as published.
    F32,
}

impl NormFormat {
    const NAMES: [(&'static str, Self); 2] = [("f16", Self::F16), ("f32", Self::F32)];

    pub(in crate::codec) const fn float(self) -> Float {
        match self {
            Self::F16 => Float::F16,
            Self::F32 => Float::F32,
        }
    }

    pub(super) const fn bytes(self) -> usize {
        self.float().bytes()
    }
}

/// Parameters of [`Octopus`](crate::codecs::Octopus):
/// `octopus:bits=3,split=paper,bdir=…,bnrm=…,rounding=local2,tail=scalar,norm=f16,gain=mse,rounds=1,seed=0`.
///
/// A block of D values has the norm, then ⌈D/3⌉ fields of 2·`bdir` + `bnrm` bits in one stream.
/// That is 0.8125 to 6.875 bits a value at D = 128.
///
/// ```
/// let spec = octaplex::codecs::OctopusSpec::new(3); // 4 bits for each of a direction's coordinates, 2 for its radius
/// assert_eq!(spec.block_bytes(128), 2 + (43usize * 10).div_ceil(8));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct OctopusSpec {
    /// Bits of each of the two coordinates of a direction, 1 to 7. `bits=b` sets it to b+1.
    pub bdir: u8,
    /// Bits of a triplet's radius, 0 to 6. `bits=b` sets it to b-1, and with `split=even` to b.
    pub bnrm: u8,
    /// The directions that the encoder tries.
    pub rounding: Rounding,
    /// The code of coordinates that are left over.
    pub tail: Tail,
    /// The type of the stored norm.
    pub norm: NormFormat,
    /// The kind of norm to store.
    pub gain: Gain,
    /// Rounds of signs and Hadamard transform, 1 to 3.
    pub rounds: u8,
    /// Seed of the rotation.
    pub seed: u64,
}

impl Default for OctopusSpec {
    fn default() -> Self {
        Self::new(3)
    }
}

pub(super) const BDIR: Key = Key::new("bdir", "1..=7").excludes(&["bits", "split"]);
pub(super) const BNRM: Key = Key::new("bnrm", "0..=6").excludes(&["bits", "split"]);
pub(super) const ROUNDS: Key = Key::new("rounds", "1..=3");
const SPLITS: [(&str, u8); 2] = [("paper", 2), ("even", 1)];

impl OctopusSpec {
    /// Creates parameters with the published split for `bits` bits, 1 to 5: (bits+1, bits-1).
    /// Others are defaults.
    #[must_use]
    pub const fn new(bits: u8) -> Self {
        Self {
            bdir: bits.saturating_add(1),
            bnrm: bits.saturating_sub(1),
            rounding: Rounding::Local2,
            tail: Tail::Scalar,
            norm: NormFormat::F16,
            gain: Gain::Mse,
            rounds: 1,
            seed: 0,
        }
    }

    builders! {
        bdir: u8;
        bnrm: u8;
        rounding: Rounding;
        tail: Tail;
        norm: NormFormat;
        gain: Gain;
        rounds: u8;
        seed: u64;
    }

    /// Returns whether all numbers of bits are in range.
    pub(in crate::codec) const fn is_valid(&self) -> bool {
        self.bdir >= 1 && self.bdir <= 7 && self.bnrm <= 6
    }

    /// Returns the bits of a triplet.
    pub(crate) const fn field_bits(&self) -> usize {
        2 * self.bdir as usize + self.bnrm as usize
    }

    /// Returns the bytes of a block of `dim` values. 0 for impossible numbers of bits.
    #[must_use]
    pub const fn block_bytes(&self, dim: usize) -> usize {
        if !self.is_valid() {
            return 0;
        }
        self.norm.bytes() + (dim.div_ceil(3) * self.field_bits()).div_ceil(8)
    }

    /// Returns the bytes of a block without its norm, if a page may keep norms apart, and otherwise
    /// 0. That needs scores in integers, which exist up to 5 bits a coordinate.
    pub(crate) const fn plane_bytes(&self, dim: usize) -> usize {
        match self.norm {
            NormFormat::F16 if self.bdir <= 5 => self.block_bytes(dim).saturating_sub(LEAD),
            _ => 0,
        }
    }

    /// Returns bdir - bnrm if `bits` and `split` can express both.
    fn split(&self) -> Option<u8> {
        let split = self.bdir.checked_sub(self.bnrm).filter(|split| (1..=2).contains(split));
        split.filter(|_| (2..=6).contains(&self.bdir))
    }
}

impl Spec for OctopusSpec {
    const NAME: &'static str = "octopus";
    const SAMPLES: &'static [Sample] = &[
        ("octopus", 128),
        ("octopus:bits=1", 64),
        ("octopus:bits=2", 512),
        ("octopus:bits=4", 96),
        ("octopus:bits=5", 32),
        ("octopus:bits=4,split=even", 112),
        ("octopus:bits=5,split=even", 64),
        ("octopus:bdir=1,bnrm=0", 64),
        ("octopus:bdir=7,bnrm=6", 160),
        ("octopus:bits=2,rounding=full", 64),
        ("octopus:rounding=local3,tail=paper,norm=f32,gain=norm", 128),
        ("octopus:rounding=scalar,gain=unbiased,rounds=2,seed=7", 80),
    ];
    const SUMMARY: &'static str = "random rotation; triplets as an octahedral direction and a radius";
    const KEYS: &'static [Key] = &[
        Key::new("bits", "1..=5"),
        Key::new("split", "paper, even"),
        BDIR,
        BNRM,
        Key::new("rounding", "local2, local3, scalar, full"),
        Key::new("tail", "scalar, paper"),
        Key::new("norm", "f16, f32"),
        Key::new("gain", "mse, norm, unbiased"),
        ROUNDS,
        Key::new("seed", "0..2^64"),
    ];

    fn set(&mut self, key: usize, value: &str) -> Option<()> {
        match key {
            0 => {
                let split = self.bdir - self.bnrm; // the parser never mixes these keys with `bdir` and `bnrm`
                self.bdir = parse_int(value, 1..=5)? as u8 + 1;
                self.bnrm = self.bdir - split;
            }
            1 => self.bnrm = self.bdir - one_of(value, &SPLITS)?,
            2 => self.bdir = parse_int(value, 1..=7)? as u8,
            3 => self.bnrm = parse_int(value, 0..=6)? as u8,
            4 => self.rounding = one_of(value, &Rounding::NAMES)?,
            5 => self.tail = one_of(value, &Tail::NAMES)?,
            6 => self.norm = one_of(value, &NormFormat::NAMES)?,
            7 => self.gain = one_of(value, &Gain::NAMES)?,
            8 => self.rounds = parse_int(value, 1..=3)? as u8,
            _ => self.seed = parse_int(value, 0..=u64::MAX)?,
        }
        Some(())
    }

    fn get(&self, key: usize) -> Value {
        match (key, self.split()) {
            (0, Some(_)) => Value::Int(u64::from(self.bdir) - 1),
            (1, Some(split)) => Value::word(split, &SPLITS),
            (0 | 1, None) | (2 | 3, Some(_)) => Value::Absent,
            (2, None) => Value::Int(self.bdir.into()),
            (3, None) => Value::Int(self.bnrm.into()),
            (4, _) => Value::word(self.rounding, &Rounding::NAMES),
            (5, _) => Value::word(self.tail, &Tail::NAMES),
            (6, _) => Value::word(self.norm, &NormFormat::NAMES),
            (7, _) => Value::word(self.gain, &Gain::NAMES),
            (8, _) => Value::Int(self.rounds.into()),
            _ => Value::Int(self.seed),
        }
    }

    fn is_default(&self, key: usize) -> bool {
        // A spec with only one of `bdir` and `bnrm` keeps the other from the default (4, 2), which
        // itself prints as `bits`.
        match key {
            2 => self.bdir == Self::default().bdir,
            3 => self.bnrm == Self::default().bnrm,
            _ => self.get(key) == Self::default().get(key),
        }
    }

    fn layout(&self, dim: usize, line: &mut dyn FnMut(usize, &str)) {
        if !self.is_valid() {
            return;
        }
        match self.norm {
            NormFormat::F16 => line(2, "f16 norm with its gain"),
            NormFormat::F32 => line(4, "f32 norm with its gain"),
        }
        let bytes = self.block_bytes(dim) - self.norm.bytes();
        match (self.tail, dim % 3) {
            (_, 0) => line(bytes, "bit stream of triplets: direction codes, radius code"),
            (Tail::Scalar, _) => {
                line(bytes, "bit stream of triplets: direction codes, radius code; last the codes left over")
            }
            (Tail::Paper, _) => {
                line(bytes, "bit stream of triplets, the last filled up: direction codes, radius code")
            }
        }
    }
}

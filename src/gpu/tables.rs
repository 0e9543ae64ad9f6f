//! What the card looks codes up in, from a configuration.

use super::{Error, refuse};
use crate::codebook::{lloyd_max, trellis};
use crate::codec::octopus::{self, NormFormat};
use crate::codec::planes::{CentreCode, Planes};
use crate::rotation::{Rotation, RotationKind};
use crate::stream::Purpose;
use crate::{Backend, CodecSpec, Gain, LayerConfig, Role};
use octaplex_arch::device::{Groups, Rotated, Tables};

const WHICH: &str = "cards take turboquant of 2, 3 and 4 bits (rotation=wht), trellis of m = 2, 4 and 8 with 8 states, int of 4 and 8 bits (med=0; with a scale a token no zeros), and keys of octopus (norm=f16) of bdir up to 5";

pub(super) fn of_keys(config: &LayerConfig) -> Result<Tables, Error> {
    of(config, config.keys, config.key_dim, Role::Keys)
}

pub(super) fn of_values(config: &LayerConfig) -> Result<Tables, Error> {
    of(config, config.values, config.value_dim, Role::Values)
}

fn rotated(rotation: &Rotation, rounds: u8, gain: Gain) -> Rotated<'_> {
    let gain = match gain {
        Gain::Mse => 0,
        Gain::Unbiased => 1,
        Gain::Norm => 2,
    };
    Rotated { signs: rotation.signs(), rounds, gain }
}

fn of(config: &LayerConfig, spec: CodecSpec, dim: usize, role: Role) -> Result<Tables, Error> {
    let rotation = |rounds, seed| {
        Rotation::wht(dim, rounds, seed, Purpose::RotationSigns, config.stream(role)).map_err(Error::Library)
    };
    let tables = match spec {
        CodecSpec::TurboQuant(spec) if spec.rotation == RotationKind::Wht => {
            let book = lloyd_max(dim, spec.levels.into()).ok_or(Error::Unsupported { why: WHICH })?;
            let rotation = rotation(spec.rounds, spec.seed)?;
            let mut thresholds = [0.0; 255];
            let count = book.thresholds(&mut thresholds);
            let rotated = rotated(&rotation, spec.rounds, spec.gain);
            Tables::codes(book.centroids(), &thresholds[..count], book.scale(), rotated)
        }
        CodecSpec::Trellis(spec) => {
            let book = trellis(spec.states.into(), spec.m.into()).ok_or(Error::Unsupported { why: WHICH })?;
            // One integer of a coordinate of a rotated unit vector.
            let unit = (1.0 / (f64::from(book.kappa()) * libm::sqrt(dim as f64))) as f32;
            let rotation = rotation(spec.rounds, spec.seed)?;
            let rotated = rotated(&rotation, spec.rounds, spec.gain);
            Tables::trellis(book.codebook(), matches!(role, Role::Keys), unit, book.kappa(), rotated)
        }
        CodecSpec::Int(spec) if (spec.group.is_some() || !spec.asymmetric) && spec.med == 0 => {
            let of_keys = role == Role::Keys;
            let rotation = spec.rotate.then(|| rotation(1, spec.seed)).transpose()?;
            let signs = rotation.as_ref().map_or(&[][..], Rotation::signs);
            let rotated = Rotated { signs, rounds: spec.rotate.into(), gain: 0 };
            match spec.group {
                Some(group) => {
                    let groups = Groups { bits: spec.bits, group, zeros: spec.asymmetric };
                    Tables::groups(groups, of_keys, rotated)
                }
                None => Tables::integers(spec.bits, of_keys, rotated),
            }
        }
        CodecSpec::Octopus(spec) if role == Role::Keys && spec.norm == NormFormat::F16 => {
            let core = octopus::Core::build(spec, dim, Backend::detect(), config.stream(role))?;
            let rotated = rotated(core.rotation(), spec.rounds, spec.gain);
            Tables::triplets(&core.shape(), spec.rounding.search(), rotated)
        }
        _ => None,
    };
    match tables {
        Some(tables) => Ok(tables),
        None => refuse(WHICH),
    }
}

/// Whether the card's kernels encode pages of such keys and values: of all that cards take but a trellis of several scales, which the
/// CPU encodes.
pub(super) fn are_encoded(config: &LayerConfig) -> bool {
    let several = |spec: &CodecSpec| matches!(spec, CodecSpec::Trellis(trellis) if trellis.scales > 1);
    ![config.keys, config.values].iter().any(several)
}

/// The codebook of a page's centre: integers, where codes change, what an integer is worth.
pub(super) fn centre(dim: usize) -> Result<([i16; 32], [f32; 31], f32), Error> {
    let book = CentreCode::codebook(dim)?;
    let (mut thresholds, mut first) = ([0.0; 255], [0.0; 31]);
    book.thresholds(&mut thresholds);
    first.copy_from_slice(&thresholds[..31]);
    let centroids = book.centroids().first_chunk().ok_or(Error::Unsupported { why: WHICH })?;
    Ok((*centroids, first, book.scale()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use octaplex_arch::device::WIDTHS;

    /// Tables of every search for triplets can be made, and what cards take they encode, but for several scales.
    #[test]
    fn what_cards_take_they_encode() {
        let with = |keys: &str, dim| {
            let keys = keys.parse().expect("a codec");
            LayerConfig::new(1, dim, 640).keys(keys).values(CodecSpec::Int(crate::IntSpec::new(4)))
        };
        for dim in WIDTHS {
            for bdir in 1..=5 {
                for rounding in ["local2", "local3", "scalar", "full"] {
                    for tail in ["scalar", "paper"] {
                        let spec = format!("octopus:bdir={bdir},bnrm=2,rounding={rounding},tail={tail}");
                        let config = with(&spec, dim);
                        assert!(of_keys(&config).is_ok() && are_encoded(&config), "{spec}, width {dim}");
                    }
                }
            }
            assert!(of_keys(&with("octopus:bdir=6", dim)).is_err());
            assert!(are_encoded(&with("int:bits=8,rotate=true", dim)));
            for group in [16, 32, 64] {
                for rest in
                    ["bits=4", "bits=8", "bits=4,asymmetric=true", "bits=8,asymmetric=true,rotate=true"]
                {
                    let config = with(&format!("int:group={group},{rest}"), dim);
                    assert!(of_keys(&config).is_ok() && are_encoded(&config), "{group}, {rest}");
                }
            }
            for spec in ["int:bits=5,group=16", "int:asymmetric=true", "int:group=16,med=3"] {
                assert!(of_keys(&with(spec, dim)).is_err(), "{spec}");
            }
            assert!(!are_encoded(&with("trellis:scales=3", dim)));
        }
    }
}

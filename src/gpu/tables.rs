//! Lookup tables of a configuration's codecs, as the GPU kernels read them.

use super::{Error, refuse};
use crate::codebook::{lloyd_max, trellis};
use crate::codec::octopus::{self, NormFormat};
use crate::codec::planes::{CentreCode, Rotated as _};
use crate::codec::turboquant::Gain;
use crate::codec::{hqmq, tq3_0};
use crate::random::{Purpose, Role};
use crate::rotation::{Rotation, RotationKind};
use crate::{Backend, CodecSpec, LayerConfig};
use octaplex_arch::BLOCK_VALUES;
use octaplex_arch::quaternion::ChunkLayout;
use octaplex_device::{Groups, Rotated, Tables};

const WHICH: &str = "GPUs take turboquant (rotation=wht), trellis and int; for keys also graded (widths 64, 128, 192, 256), octopus (norm=f16, bdir up to 5), tq3_0 (widths that are multiples of 32) and hqmq";

const GRADES: &str =
    "GPUs take graded keys with 1, 2, 4, 8 or 16 centroids: change fine or coarse, or attend on the CPU";

const HAAR: &str =
    "GPUs rotate with rotation=wht, the default: leave rotation=haar out, or attend on the CPU";

/// Returns the tables of a configuration's keys.
pub(super) fn of_keys(config: &LayerConfig) -> Result<Tables, Error> {
    of(config, config.keys, config.key_dim, Role::Keys)
}

/// Returns the tables of a configuration's values.
pub(super) fn of_values(config: &LayerConfig) -> Result<Tables, Error> {
    of(config, config.values, config.value_dim, Role::Values)
}

/// Describes a rotation, with the number that kernels know a gain by.
fn rotated(rotation: &Rotation, rounds: u8, gain: Gain) -> Rotated<'_> {
    let gain = match gain {
        Gain::Mse => 0,
        Gain::Unbiased => 1,
        Gain::Norm => 2,
    };
    Rotated { signs: rotation.signs(), rounds, gain }
}

/// Builds the tables of a codec for vectors of `dim` coordinates.
///
/// # Errors
///
/// [`Error::Unsupported`] says which codecs have kernels, if this one has none.
fn of(config: &LayerConfig, spec: CodecSpec, dim: usize, role: Role) -> Result<Tables, Error> {
    let rotation = |rounds, seed| {
        Rotation::wht(dim, rounds, seed, Purpose::RotationSigns, config.head_id(role)).map_err(Error::Library)
    };
    let tables = match spec {
        CodecSpec::TurboQuant(spec) if spec.rotation == RotationKind::Haar => return refuse(HAAR),
        CodecSpec::TurboQuant(spec) => {
            let book = lloyd_max(dim, spec.levels.into()).ok_or(Error::Unsupported { why: WHICH })?;
            let rotation = rotation(spec.rounds, spec.seed)?;
            let mut thresholds = [0.0; 255];
            let count = book.thresholds(&mut thresholds);
            let rotated = rotated(&rotation, spec.rounds, spec.gain);
            Tables::codes(book.centroids(), &thresholds[..count], book.scale(), rotated)
        }
        CodecSpec::Graded(spec) if role == Role::Keys => {
            let [fine, coarse] = spec.halves();
            if [spec.fine, spec.coarse].iter().any(|m| !m.is_power_of_two()) {
                return refuse(GRADES);
            }
            let half = |half| of(config, CodecSpec::Trellis(half), dim / 2, role);
            Tables::halves(half(fine)?, half(coarse)?, dim)
        }
        CodecSpec::Trellis(spec) => {
            let book = trellis(spec.states.into(), spec.m.into()).ok_or(Error::Unsupported { why: WHICH })?;
            // The value of one integer for a coordinate of a rotated unit vector.
            let unit = (1.0 / (f64::from(book.kappa()) * libm::sqrt(dim as f64))) as f32;
            let rotation = rotation(spec.rounds, spec.seed)?;
            let rotated = rotated(&rotation, spec.rounds, spec.gain);
            Some(Tables::trellis(book.codebook(), matches!(role, Role::Keys), unit, book.kappa(), rotated))
        }
        CodecSpec::Int(spec) => {
            let of_keys = role == Role::Keys;
            let rotation = spec.rotate.then(|| rotation(1, spec.seed)).transpose()?;
            let signs = rotation.as_ref().map_or(&[][..], Rotation::signs);
            let rotated = Rotated { signs, rounds: spec.rotate.into(), gain: 0 };
            let groups = Groups { bits: spec.bits, group: spec.group, zeros: spec.asymmetric };
            match (spec.group, spec.asymmetric) {
                (None, false) => Tables::integers(spec.bits, of_keys, rotated),
                _ => Tables::groups(groups, of_keys, rotated),
            }
        }
        CodecSpec::Octopus(spec) if role == Role::Keys && spec.norm == NormFormat::F16 => {
            let core = octopus::Core::build(spec, dim, Backend::detect(), config.head_id(role))?;
            let rotated = rotated(core.rotation(), spec.rounds, spec.gain);
            Tables::triplets(&core.shape(), spec.rounding.search(), rotated)
        }
        CodecSpec::Hqmq(spec) if role == Role::Keys => {
            let core = hqmq::Core::build(spec, dim, Backend::detect(), config.head_id(role))?;
            let (layout, set, signs) = core.shape();
            // Rows on the GPU have no flags.
            let layout = ChunkLayout { flags: false, ..*layout };
            Tables::chunks(&layout, &set, Rotated { signs, rounds: spec.rotate.into(), gain: 0 })
        }
        CodecSpec::Tq3(spec) if role == Role::Keys && dim.is_multiple_of(BLOCK_VALUES) => {
            Tables::blocks(&spec.variant.book(), &tq3_0::SIGNS)
        }
        _ => None,
    };
    match tables {
        Some(tables) => Ok(tables),
        None => refuse(WHICH),
    }
}

/// Returns whether kernels encode pages of these keys and values. Of the codecs that GPUs take, the CPU
/// encodes a trellis with several scales and pages with outliers.
pub(super) fn are_encoded(config: &LayerConfig) -> bool {
    let of_cpu = |spec: &CodecSpec| match spec {
        CodecSpec::Trellis(trellis) => trellis.scales > 1,
        CodecSpec::Int(int) => int.med > 0,
        CodecSpec::Hqmq(hqmq) => hqmq.med > 0,
        _ => false,
    };
    ![config.keys, config.values].iter().any(of_cpu)
}

/// Returns the codebook of a page's centre: integers, thresholds, and what an integer is worth.
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
    use crate::cache::Center;
    use crate::cache::layout::Layout;
    use crate::gpu::outliers::Apart;
    use alloc::format;
    use alloc::vec::Vec;
    use octaplex_device::{Shape, WIDTHS};

    /// Every search for triplets has tables. The kernels encode all codecs that GPUs take, except several
    /// scales and outliers.
    #[test]
    fn gpus_encode_the_codecs_that_they_take() {
        let with = |keys: &str, dim| {
            let keys = keys.parse().expect("a codec");
            LayerConfig::new(1, dim, 640)
                .keys(keys)
                .values(CodecSpec::Int(crate::codec::int::IntSpec::new(4)))
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
            for group in ["token", "16", "32", "64"] {
                for bits in 2..=8 {
                    for rest in ["", ",asymmetric=true", ",asymmetric=true,rotate=true"] {
                        let config = with(&format!("int:bits={bits},group={group}{rest}"), dim);
                        assert!(of_keys(&config).is_ok() && are_encoded(&config), "{bits}, {group}{rest}");
                    }
                }
            }
            let exact = with("int:group=16,med=3", dim);
            assert!(of_keys(&exact).is_ok() && !are_encoded(&exact));
            assert!(!are_encoded(&with("trellis:scales=3", dim)));
            for bits in 5..=8 {
                let config = with(&format!("turboquant:bits={bits}"), dim);
                assert!(of_keys(&config).is_ok() && are_encoded(&config), "{bits} bits, width {dim}");
            }
            for levels in 0..=260 {
                let spec = crate::codec::turboquant::TurboQuantSpec::new(4).levels(levels);
                let config = with("int", dim).keys(spec.into()).values(spec.into());
                let there = of_keys(&config).is_ok() && of_values(&config).is_ok();
                assert_eq!(there, spec.block_bytes(dim) > 0, "{levels} levels, width {dim}");
                assert!(!there || are_encoded(&config));
            }
            for (states, m) in crate::codebook::TRELLIS_STATES
                .into_iter()
                .flat_map(|states| crate::codebook::TRELLIS_LEVELS.map(|m| (states, m)))
            {
                let config = with(&format!("trellis:m={m},states={states}"), dim);
                assert!(
                    of_keys(&config).is_ok() && are_encoded(&config),
                    "trellis of {states} states, m={m}"
                );
            }
        }
    }

    /// Pages on the GPU have as many bytes as the CPU's, so each part starts where kernels expect it.
    #[test]
    fn pages_are_as_long_as_the_cpus() {
        let mut specs: Vec<alloc::string::String> = Vec::new();
        specs.extend((1..=8).map(|bits| format!("turboquant:bits={bits}")));
        specs.extend([3, 5, 6, 10, 12].map(|levels| format!("turboquant:levels={levels}")));
        for states in crate::codebook::TRELLIS_STATES {
            specs.extend(crate::codebook::TRELLIS_LEVELS.map(|m| format!("trellis:m={m},states={states}")));
        }
        specs.extend(
            ["int", "int:bits=8", "int:group=16", "int:bits=8,group=16,asymmetric=true"].map(Into::into),
        );
        specs.extend([2, 3, 5, 6, 7].map(|bits| format!("int:bits={bits}")));
        specs.extend(["int:bits=3,group=16", "int:bits=5,asymmetric=true"].map(Into::into));
        specs.extend(["int:med=3", "int:bits=6,group=16,med=2"].map(Into::into));
        let values_too = specs.len();
        specs.extend(
            ["octopus", "octopus:bits=2", "hqmq", "hqmq:s=192,r=6,packing=index", "hqmq:med=3", "tq3_0"]
                .map(Into::into),
        );
        specs.extend(
            ["graded", "graded:bits=4", "graded:bits=2", "graded:fine=16,coarse=1,states=32"].map(Into::into),
        );
        for dim in WIDTHS {
            for (number, keys) in specs.iter().enumerate() {
                if keys == "tq3_0" && !dim.is_multiple_of(BLOCK_VALUES)
                    || keys.starts_with("graded") && matches!(dim, 80 | 96)
                {
                    continue;
                }
                for center in [Center::Page, Center::Prefix, Center::Off] {
                    let values = &specs[(number * 7 + dim) % values_too];
                    let page = [64, 128, 256][number % 3];
                    let config = LayerConfig::new(3, dim, 2000).page(page).center(center);
                    let config = config.keys(keys.parse().expect("a codec"));
                    let config = config.values(values.parse().expect("a codec"));
                    let layout = Layout::new(&config);
                    let apart = Apart::new(&config, &layout);
                    let shape = Shape {
                        dim,
                        kv_heads: 3,
                        page_tokens: page,
                        centres: layout.centre_bytes > 0,
                        sequences: 1,
                        pages: 1,
                        pages_each: 1,
                        exact: 1,
                        sinks: 0,
                        ring: layout.ring,
                        outliers: apart.sides(),
                    };
                    let tables = (of_keys(&config).expect("keys"), of_values(&config).expect("values"));
                    let bytes = shape.bytes_of_page(&tables.0, &tables.1);
                    assert_eq!(bytes, apart.page_bytes(), "{keys}, {values}, width {dim}, {center:?}");
                }
            }
        }
    }

    /// Sets of every kind, and both variants of small blocks. Other widths and uses as values are errors.
    #[test]
    fn keys_of_chunks_and_small_blocks() {
        let with = |keys: &str, dim| {
            let keys = keys.parse().expect("a codec");
            LayerConfig::new(1, dim, 640)
                .keys(keys)
                .values(CodecSpec::Int(crate::codec::int::IntSpec::new(4)))
        };
        for dim in WIDTHS {
            for variant in ["original", "3bit"] {
                let config = with(&format!("tq3_0:variant={variant}"), dim);
                assert_eq!(of_keys(&config).is_ok(), dim.is_multiple_of(32), "{variant}, width {dim}");
                assert!(are_encoded(&config));
            }
            for spec in
                ["", ":s=1", ":s=3,r=2", ":s=192,r=6,packing=index", ":s=255,r=6", ":secondary=optimised"]
            {
                let config = with(&format!("hqmq{spec}"), dim);
                assert!(of_keys(&config).is_ok() && are_encoded(&config), "{spec}, width {dim}");
            }
            let exact = with("hqmq:med=3", dim);
            assert!(of_keys(&exact).is_ok() && !are_encoded(&exact));
            let values = with("hqmq", dim).values("hqmq".parse().expect("a codec"));
            assert!(of_values(&values).is_err());
        }
    }
}

//! What the card looks codes up in, from a configuration.

use super::{Error, refuse};
use crate::codebook::{lloyd_max, trellis};
use crate::codec::planes::CentreCode;
use crate::rotation::{Rotation, RotationKind};
use crate::stream::Purpose;
use crate::{CodecSpec, LayerConfig, Role};
use octaplex_arch::device::Tables;

const WHICH: &str =
    "cards take turboquant of 2, 3 and 4 bits (rotation=wht), and trellis of m = 2, 4 and 8 with 8 states";

pub(super) fn of_keys(config: &LayerConfig) -> Result<Tables, Error> {
    of(config, config.keys, config.key_dim, Role::Keys)
}

pub(super) fn of_values(config: &LayerConfig) -> Result<Tables, Error> {
    of(config, config.values, config.value_dim, Role::Values)
}

fn of(config: &LayerConfig, spec: CodecSpec, dim: usize, role: Role) -> Result<Tables, Error> {
    let rotation = |rounds, seed| {
        Rotation::wht(dim, rounds, seed, Purpose::RotationSigns, config.stream(role)).map_err(Error::Library)
    };
    let tables = match spec {
        CodecSpec::TurboQuant(spec) if spec.rotation == RotationKind::Wht => {
            let book = lloyd_max(dim, spec.levels.into()).ok_or(Error::Unsupported { why: WHICH })?;
            let rotation = rotation(spec.rounds, spec.seed)?;
            Tables::codes(book.centroids(), book.scale(), rotation.signs(), spec.rounds)
        }
        CodecSpec::Trellis(spec) => {
            let book = trellis(spec.states.into(), spec.m.into()).ok_or(Error::Unsupported { why: WHICH })?;
            // One integer of a coordinate of a rotated unit vector.
            let unit = (1.0 / (f64::from(book.kappa()) * libm::sqrt(dim as f64))) as f32;
            let rotation = rotation(spec.rounds, spec.seed)?;
            Tables::trellis(book.codebook(), matches!(role, Role::Keys), unit, rotation.signs(), spec.rounds)
        }
        _ => None,
    };
    match tables {
        Some(tables) => Ok(tables),
        None => refuse(WHICH),
    }
}

/// The codebook of a page's centre.
pub(super) fn centre(dim: usize) -> Result<([i16; 32], f32), Error> {
    let book = CentreCode::codebook(dim)?;
    let centroids = book.centroids().first_chunk().ok_or(Error::Unsupported { why: WHICH })?;
    Ok((*centroids, book.scale()))
}

//! Keys and values that another program decoded, and the bits that it says it stored.

use crate::failure::{At, Failure, Result, fail};
use crate::input::{Grid, Sample, read_heads};
use crate::{files, npy};
use octaplex::codecs::Role;
use safetensors::SafeTensors;
use std::path::Path;

/// Decoded vectors of a sample.
pub(crate) struct Reconstructed {
    pub(crate) name: String,
    /// Bits a value of keys and of values.
    bits: (f64, f64),
    keys: Option<Vec<Vec<f32>>>,
    values: Option<Vec<Vec<f32>>>,
}

impl Reconstructed {
    /// Reads k and v, or one of them, in the shape of the sample.
    pub(crate) fn load(path: &Path, name: Option<&str>, bits: (f64, f64), sample: &Sample) -> Result<Self> {
        let stem = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy();
        let name = name.unwrap_or(&stem).to_owned();
        let bytes = files::read(path)?;
        let heads = if bytes.starts_with(npy::MAGIC) {
            npy::parse(&bytes).and_then(|(shape, rows)| from_npy(&shape, &rows, sample))
        } else {
            from_safetensors(&bytes, sample)
        };
        let (keys, values) = heads.at(files::name(path))?;
        Ok(Self { name, bits, keys, values })
    }

    /// Returns each head's vectors, if the file has them.
    pub(crate) fn heads(&self, role: Role) -> Option<&[Vec<f32>]> {
        match role {
            Role::Keys => self.keys.as_deref(),
            Role::Values => self.values.as_deref(),
        }
    }

    pub(crate) fn bits(&self, role: Role) -> f64 {
        match role {
            Role::Keys => self.bits.0,
            Role::Values => self.bits.1,
        }
    }
}

/// Parses bits a value: `4.25`, or `4.25/3.5` for keys and values.
pub(crate) fn parse_bits(text: &str) -> std::result::Result<(f64, f64), String> {
    let number = |text: &str| match text.trim().parse() {
        Ok(bits) if f64::is_finite(bits) && bits > 0.0 && bits <= 64.0 => Ok(bits),
        _ => Err("bits a value, more than 0 and at most 64: 4.25, or 4.25/3.5 for keys/values".to_owned()),
    };
    let (keys, values) = text.split_once('/').unwrap_or((text, text));
    Ok((number(keys)?, number(values)?))
}

type Heads = Option<Vec<Vec<f32>>>;

fn from_safetensors(bytes: &[u8], sample: &Sample) -> Result<(Heads, Heads)> {
    let Ok(file) = SafeTensors::deserialize(bytes) else {
        fail!("neither a safetensors nor an .npy file (or a damaged one); decoded k and v are expected");
    };
    let heads = |name: &str| -> Result<Heads> {
        let Ok(tensor) = file.tensor(name) else { return Ok(None) };
        if tensor.shape() != sample.given {
            fail!("{name} has shape {:?}; the input's is {:?}", tensor.shape(), sample.given);
        }
        Ok(Some(read_heads(name, &tensor, Grid::of(name, "tokens", tensor.shape())?)?))
    };
    match (heads("k")?, heads("v")?) {
        (None, None) => Err(Failure("neither a tensor k nor v; decoded k and v are expected".into())),
        found => Ok(found),
    }
}

/// Splits an array: vectors for keys and values alike, as many as the input has, or \[2, …], keys, then values.
fn from_npy(shape: &[usize], rows: &[f32], sample: &Sample) -> Result<(Heads, Heads)> {
    let dim = sample.dim;
    if let Some(index) = rows.iter().position(|value| !value.is_finite()) {
        fail!("row {}, column {} is NaN or infinite", index / dim, index % dim);
    }
    let heads = |rows: &[f32]| Some(rows.chunks_exact(sample.tokens * dim).map(<[f32]>::to_vec).collect());
    let count: usize = sample.shape.iter().product();
    if shape.last() == Some(&dim) && sample.is_plain() && rows.len() == count {
        return Ok((heads(rows), heads(rows)));
    }
    if shape.last() == Some(&dim) && shape.first() == Some(&2) && rows.len() == 2 * count {
        return Ok((heads(&rows[..count]), heads(&rows[count..])));
    }
    let expected = match sample.is_plain() {
        true => format!("{} vectors of width {dim}", sample.tokens),
        false => format!("keys, then values, [2, {}]", sample.shape.map(|n| n.to_string()).join(", ")),
    };
    fail!("the array has shape {shape:?}; expected {expected}")
}

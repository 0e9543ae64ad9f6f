//! NumPy's `.npy`: little-endian floats in C order. (The crates for it bring a parser of Python literals that takes
//! longer to build than all of this tool; the header is one line of text.)

use crate::failure::{Failure, Result, fail, shown};
use half::f16;

/// The first bytes of every `.npy` file.
pub(crate) const MAGIC: &[u8] = b"\x93NUMPY";

/// Returns shape and values of an array of f16, f32 or f64, or the error of the file.
pub(crate) fn parse(bytes: &[u8]) -> Result<(Vec<usize>, Vec<f32>)> {
    let (header, data) = split(bytes).ok_or_else(|| Failure("damaged .npy header".into()))?;
    let (Some(descr), Some(order), Some(shape)) =
        (entry(header, "descr"), entry(header, "fortran_order"), entry(header, "shape"))
    else {
        fail!("damaged .npy header");
    };
    if order.starts_with("True") {
        fail!("the array is in Fortran order; save it with numpy.ascontiguousarray");
    }
    let list = shape.strip_prefix('(').and_then(|shape| shape.split(')').next());
    let numbers = list.map(|list| list.split(',').map(str::trim).filter(|number| !number.is_empty()));
    let Some(Ok(shape)) =
        numbers.map(|numbers| numbers.map(str::parse).collect::<std::result::Result<Vec<usize>, _>>())
    else {
        fail!("damaged shape in the .npy header");
    };
    let kind = descr.trim_start_matches(['\'', '"']).split(['\'', '"']).next().unwrap_or("");
    let values: Vec<f32> = match kind {
        "<f2" => data.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect(),
        "<f4" => data.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        "<f8" => data.as_chunks().0.iter().map(|b| f64::from_le_bytes(*b) as f32).collect(),
        _ => fail!("values of type {}; little-endian f2, f4 and f8 are read", shown(kind)),
    };
    let size = usize::from(kind.as_bytes()[2] - b'0');
    let count = shape.iter().try_fold(1usize, |count, &n| count.checked_mul(n));
    match count {
        Some(count) if count.checked_mul(size) == Some(data.len()) => Ok((shape, values)),
        _ => fail!("the shape {shape:?} does not fit the file's {} bytes of values", data.len()),
    }
}

/// Splits a file into the header's text and the values' bytes.
fn split(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let rest = bytes.strip_prefix(MAGIC)?;
    let (length, rest) = match *rest.first()? {
        1 => (usize::from(u16::from_le_bytes(rest.get(2..4)?.try_into().ok()?)), rest.get(4..)?),
        _ => (u32::from_le_bytes(rest.get(2..6)?.try_into().ok()?) as usize, rest.get(6..)?),
    };
    let (header, data) = rest.split_at_checked(length)?;
    Some((std::str::from_utf8(header).ok()?, data))
}

/// Returns the text after `'name':` in the header's dictionary.
fn entry<'a>(header: &'a str, name: &str) -> Option<&'a str> {
    let at = header.find(&format!("'{name}'"))?;
    Some(header[at..].split_once(':')?.1.trim_start())
}

/// Writes a file of `rows` rows of `columns` f32 values; `values` has their bytes.
pub(crate) fn file(rows: usize, columns: usize, values: &[u8]) -> Vec<u8> {
    let mut header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {columns}), }}");
    // Values start at a multiple of 64 bytes, after a newline.
    let start = (MAGIC.len() + 4 + header.len() + 1).next_multiple_of(64);
    header += &" ".repeat(start - MAGIC.len() - 4 - header.len() - 1);
    header.push('\n');
    let mut file = MAGIC.to_vec();
    file.extend([1, 0]);
    file.extend((header.len() as u16).to_le_bytes());
    file.extend(header.bytes());
    file.extend(values);
    file
}

//! The bodies of the fuzz targets `npy` and `safetensors`: files that may hold anything, as `octaplex --input` reads them.
#![allow(unreachable_pub)] // fuzz/ takes them
#![allow(clippy::unwrap_used, clippy::panic)] // tests fail by panicking

use crate::input::Sample;
use crate::npy;
use octaplex::codecs::Role;

/// Any bytes: an error, or an array with as many values as its shape says.
pub fn npy(data: &[u8]) {
    match npy::parse(data) {
        Ok((shape, values)) => assert_eq!(shape.iter().product::<usize>(), values.len()),
        Err(failure) => assert!(!failure.to_string().is_empty()),
    }
    sample(data);
}

/// A file of a header and `data` behind it, so that the length before the header is right: an error, or heads of finite rows.
pub fn safetensors(data: &[u8]) {
    sample(data);
    // A header of its own, with types, shapes and lengths that the first bytes choose.
    let mut bytes = data.iter().copied();
    let mut byte = || bytes.next().unwrap_or(1);
    let mut header = String::from("{");
    let mut end = 0usize;
    for name in ["k", "v", "q", "q_pos"] {
        let choice = byte();
        if choice & 15 == 15 {
            continue;
        }
        let (dtype, size) =
            [("F32", 4), ("F16", 2), ("BF16", 2), ("F64", 8), ("I32", 4), ("I64", 8), ("U8", 1)]
                [if name == "q_pos" { 4 + usize::from(choice & 1) } else { usize::from(choice % 7) }];
        let axes = if name == "q_pos" { 1 } else { 4 - usize::from(choice >> 6 == 3) };
        let shape: Vec<usize> = (0..axes).map(|_| usize::from(byte() % 5)).collect();
        let length = shape.iter().product::<usize>() * size;
        let separator = if header.len() > 1 { "," } else { "" };
        header += &format!(
            r#"{separator}"{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{end},{}]}}"#,
            end + length
        );
        end += length;
    }
    header.push('}');
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.bytes());
    file.extend(bytes.chain(std::iter::repeat(0)).take(end));
    sample(&file);
}

fn sample(data: &[u8]) {
    match Sample::from_bytes("fuzz".into(), data) {
        Ok(sample) => {
            for role in [Role::Keys, Role::Values] {
                for head in sample.heads(role) {
                    assert_eq!(head.len(), sample.tokens * sample.dim);
                    assert!(head.iter().all(|x| x.is_finite()));
                }
            }
            if let Some(queries) = &sample.queries {
                assert!(queries.positions.iter().all(|position| *position < sample.tokens));
                assert!(queries.group > 0 && !queries.heads.is_empty());
            }
            assert!(!sample.describe().is_empty() && sample.shape[2] == sample.tokens);
        }
        Err(failure) => assert!(!failure.to_string().is_empty()),
    }
}

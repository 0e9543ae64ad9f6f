//! The arithmetic of offsets that `// SAFETY:` comments rest on, for every packing, width, stride and number of rows there is.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)] // tests fail by panicking

use octaplex_arch::{MAX_DIM, Packing, Rows};

fn packings() -> Vec<Packing> {
    (1..=8).map(Packing::bits).chain((2..=256).filter_map(Packing::for_levels)).collect()
}

/// Every code's bits lie inside the planes, those of no two codes overlap, and no plane has a byte too many.
#[test]
fn every_code_of_every_packing_lies_in_its_planes() {
    let packings = packings();
    assert!(packings.len() > 8 + 13, "{} packings", packings.len());
    for packing in packings {
        let (group, group_bits) = packing.digit_group();
        assert!(u64::from(packing.radix()).pow(group as u32) <= 1 << group_bits);
        assert_eq!(packing.levels(), (packing.radix() as usize) << packing.raw_bits());
        for count in 0..=MAX_DIM {
            let (raw, all) = (packing.raw_bytes(count), packing.bytes(count));
            let digits = all - raw;
            // The raw plane: code i has bits i·raw .. (i + 1)·raw.
            let raw_bits = count * packing.raw_bits() as usize;
            assert!(raw_bits <= 8 * raw && 8 * raw < raw_bits + 8, "{packing:?}, {count}: raw plane");
            // The digit plane: whole groups, then a shorter one.
            let (whole, rest) = (count / group, count % group);
            let last =
                if packing.radix() == 1 || rest == 0 { 0 } else { packing.short_group_bits(rest) as usize };
            let digit_bits = whole * group_bits as usize + last;
            assert!(last <= group_bits as usize);
            if rest > 0 && packing.radix() > 1 {
                let combinations = u64::from(packing.radix()).pow(rest as u32);
                assert!(
                    combinations <= 1 << last && combinations > 1 << (last - 1),
                    "{packing:?}, {rest} digits"
                );
            }
            assert!(
                digit_bits <= 8 * digits && 8 * digits < digit_bits + 8,
                "{packing:?}, {count}: digit plane"
            );
            // One more code never takes fewer bytes.
            assert!(packing.bytes(count + 1) >= all);
        }
    }
}

/// Rows that are counted lie in the bytes, with scales in them and apart, and with the last row as long as the others or as its stride.
#[test]
fn every_row_that_is_counted_lies_in_the_bytes() {
    let bytes = vec![0; 40 * 80];
    for len in 2..=36 {
        for stride in len - 2..=len + 4 {
            if stride == 0 {
                continue;
            }
            for rows in 0..=40usize {
                for end in [rows * stride, (rows * stride + len).saturating_sub(stride)] {
                    let rows_of = Rows { bytes: &bytes[..end], stride, len, dim: 8, scales: None };
                    let count = rows_of.count();
                    for row in 0..count {
                        assert!(
                            row * stride + len <= end,
                            "row {row} of {len} bytes every {stride} in {end}"
                        );
                    }
                    // And none is left out.
                    assert!(
                        count * stride + len > end,
                        "{count} rows of {len} bytes every {stride} in {end}"
                    );
                    if stride >= len {
                        assert_eq!(count, if end == 0 { 0 } else { rows });
                    }
                }
            }
        }
    }
}

/// The largest sums that kernels form in 32 bits: strides times rows, codes times queries.
#[test]
fn products_of_sizes_stay_within_their_integers() {
    let (longest_stride, most_rows) = (1u64 << 16, 16u64); // `Rows::check`, and rows that one block reads
    assert!(longest_stride * most_rows < 1 << 31);
    let largest = MAX_DIM as u64 * 127 * 127;
    assert!(largest < 1 << 31, "a dot product of int8 needs {largest}");
    for packing in packings() {
        assert!(packing.bytes(MAX_DIM) <= MAX_DIM, "{packing:?}");
    }
}

//! The arithmetic of offsets that `// SAFETY:` comments rely on, for every packing, width, stride
//! and number of rows. Also the checks of constructors.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)] // tests fail by panicking

use octaplex_arch::quaternion::{INDEX_CELLS, INDEX_PADDING, QuaternionIndex};
use octaplex_arch::{Backend, IntQuery, MAX_DIM, Packing, Rows, TrellisCodebook};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

fn packings() -> Vec<Packing> {
    (1..=8).map(Packing::bits).chain((2..=256).filter_map(Packing::for_levels)).collect()
}

/// All bits of all codes lie inside the planes, and no plane has a byte too many.
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

/// No two codes overlap.
///
/// Another code changes raw bits at its own place only. In the digit plane it changes bits of its
/// own group only, and the digits of the others stay.
#[test]
fn another_code_changes_its_own_place() {
    for packing in packings() {
        let ((group, group_bits), raw) = (packing.digit_group(), packing.raw_bits() as usize);
        for count in (1..=40).chain([MAX_DIM - 1, MAX_DIM]) {
            let codes: Vec<u8> = (0..count).map(|i| (i * 29 % packing.levels()) as u8).collect();
            let pack = |codes: &[u8]| {
                let mut bytes = vec![0; packing.bytes(count)];
                Backend::SCALAR.pack(packing, codes, &mut bytes);
                bytes
            };
            let before = pack(&codes);
            for i in 0..count {
                let (digit, low) = (u32::from(codes[i]) >> raw, u32::from(codes[i]) & ((1 << raw) - 1));
                let mut other = codes.clone();
                other[i] = ((((digit + 1) % packing.radix()) << raw) | (low ^ ((1 << raw) - 1))) as u8;
                let after = pack(&other);
                let changed = |bit: &usize| (before[bit / 8] ^ after[bit / 8]) >> (bit % 8) & 1 == 1;
                let digits = 8 * packing.raw_bytes(count);
                assert!(
                    (0..digits).filter(changed).eq(i * raw..(i + 1) * raw),
                    "{packing:?}, {count}: code {i}"
                );
                let first = digits + i / group * group_bits as usize;
                let own = first..first + group_bits as usize;
                let bits: Vec<usize> = (digits..8 * before.len()).filter(changed).collect();
                assert_eq!(bits.is_empty(), packing.radix() == 1);
                assert!(
                    bits.iter().all(|bit| own.contains(bit)),
                    "{packing:?}, {count}: digit {i} in {bits:?}"
                );
                let mut read = vec![0; count];
                Backend::SCALAR.unpack(packing, &after, &mut read);
                assert!(read == other, "{packing:?}, {count}: code {i} changes others");
            }
        }
    }
}

/// All counted rows lie in the bytes, with scales inside and separate, and with the last row with
/// or without its stride.
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
                    let rows_of =
                        Rows { bytes: &bytes[..end], stride, len, dim: 8, scales: None, ahead: &[] };
                    let count = rows_of.count();
                    for row in 0..count {
                        assert!(
                            row * stride + len <= end,
                            "row {row} of {len} bytes every {stride} in {end}"
                        );
                    }
                    // No row is missing.
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

/// Kernels do not check sets again, so a set that would make them read outside cannot be
/// constructed.
#[test]
fn constructors_reject_invalid_arguments() {
    let made = |make: &dyn Fn()| {
        let refused = catch_unwind(AssertUnwindSafe(make)).err();
        // Neither by an index nor by an overflow.
        let by_luck = |panic: &Box<dyn Any + Send>| {
            panic.downcast_ref::<&str>().is_none_or(|words| words.starts_with("attempt"))
        };
        assert!(!refused.as_ref().is_some_and(by_luck));
        refused.is_none()
    };
    for bits in 0..=9 {
        assert_eq!(made(&|| _ = Packing::bits(bits)), (1..=8).contains(&bits), "{bits} bits");
    }

    let book =
        |history, levels, centroids: &[i8]| made(&|| _ = TrellisCodebook::new(history, levels, centroids));
    for (history, levels) in (0..=7).flat_map(|history| (0..=17).map(move |levels| (history, levels))) {
        let may_be = (2..=6).contains(&history) && [1, 2, 3, 4, 6, 8, 12, 16].contains(&levels);
        let count = levels << (history + 1);
        assert_eq!(
            book(history, levels, &vec![-127; count]),
            may_be,
            "{levels} levels, {history} bits of history"
        );
        assert!(!book(history, levels, &vec![0; count + 1]));
        assert!(count == 0 || !book(history, levels, &vec![0; count - 1]));
    }
    for changed in 0..16 {
        let mut centroids = [0; 16];
        centroids[changed] = -128;
        assert!(!book(2, 2, &centroids), "vpsignb has no 128");
        centroids[changed] = -1;
        assert_eq!(book(2, 2, &centroids), changed < 8, "the second of two levels is not the lower one");
    }

    let mut cells = [1; INDEX_CELLS];
    let mut lists = [1; 3 + INDEX_PADDING];
    let index =
        |cells: &[u32; INDEX_CELLS], lists: &[u8]| made(&|| _ = QuaternionIndex::new(2, cells, lists));
    for cell in [0, INDEX_CELLS - 1] {
        for (start, length, may_be) in
            [(0, 0, false), (0, 3, true), (0, 4, false), (2, 1, true), (2, 2, false), (3, 1, false)]
        {
            cells[cell] = start << 8 | length;
            assert_eq!(index(&cells, &lists), may_be, "{length} members from {start} on, of 3");
        }
        cells[cell] = 1;
    }
    for place in [0, 3, 2 + INDEX_PADDING] {
        lists[place] = 2;
        assert!(!index(&cells, &lists), "member {place} is the third of two");
        lists[place] = 1;
    }
    assert!(index(&cells, &lists) && !index(&cells, &lists[..INDEX_PADDING]));
}

/// Every packing at every width, beyond those of codecs.
///
/// Loads of a row must end inside it, or the specification does the work. Codes must come from
/// where the specification puts them. The slices have no byte too many, so AddressSanitizer sees
/// every access beyond them.
#[test]
fn every_width_of_every_packing_is_read_alike() {
    let count = 17; // a block of sixteen, and one more
    let bits = |floats: &[f32]| floats.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    for packing in packings() {
        let largest = if packing.levels() <= 16 { 127 } else { 1023 };
        let centroids: Vec<i16> =
            (0..packing.levels()).map(|i| (i * 53 % (2 * largest + 1)) as i16 - largest as i16).collect();
        for dim in 1..=MAX_DIM {
            let len = 2 + packing.bytes(dim);
            let codes: Vec<u8> = (0..dim).map(|i| (i * 29 % packing.levels()) as u8).collect();
            let mut planes = vec![0; len - 2];
            Backend::SCALAR.pack(packing, &codes, &mut planes);
            let row: Vec<u8> = [0x00, 0x3c].into_iter().chain(planes.iter().copied()).collect();
            let (apart, scales) = ([&row[..2], &planes.repeat(count)].concat(), vec![0.75; count]);
            let inside = row.repeat(count);
            // Many queries, which some backends process differently, at few widths, from the
            // narrowest to the widest.
            let queries_count = if dim == 16 || dim.is_multiple_of(96) { 17 } else { 1 };
            let values: Vec<i16> = (0..dim + queries_count).map(|i| (i * 37 % 255) as i16 - 127).collect();
            let queries: Vec<_> = values
                .windows(dim)
                .take(queries_count)
                .map(|values| IntQuery { values, scale: 0.5 })
                .collect();
            let weights: Vec<f32> = (0..queries_count * count).map(|i| (i % 23) as f32 - 6.5).collect();
            // Two of each width.
            let rows = if dim & 2 == 0 {
                Rows { bytes: &inside, stride: len, len, dim, scales: None, ahead: &[] }
            } else {
                Rows { bytes: &apart, stride: len - 2, len, dim, scales: Some(&scales), ahead: &[] }
            };
            let run = |backend: Backend| {
                let (mut scores, mut sums, mut read) =
                    (vec![0.0; queries_count * count], vec![0.0; queries_count * dim], vec![0; dim]);
                backend.score_codes(packing, &[rows], &centroids, 0.25, &queries, &mut scores);
                backend.accumulate_codes(packing, &[rows], &centroids, 0.25, &weights, &mut sums);
                backend.unpack(packing, &planes, &mut read);
                (bits(&scores), bits(&sums), read)
            };
            let expected = run(Backend::SCALAR);
            assert_eq!(expected.2, codes);
            for backend in Backend::available().filter(|backend| *backend != Backend::SCALAR) {
                assert!(run(backend) == expected, "{packing:?} at {dim}, {}", backend.name());
            }
        }
    }
}

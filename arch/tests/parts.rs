//! Tests beyond the suite of kernels: detection, the thread's environment, the errors of the
//! specification, and the checks behind those of `Backend`'s methods.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)] // tests fail by panicking

use octaplex_arch::quaternion::ChunkLayout;
use octaplex_arch::{
    Backend, IntQuery, Packing, Rows, f16_to_f32, f32_to_bf16, f32_to_f16, hadamard, internals,
};
use std::panic::catch_unwind;

fn rows(bytes: &[u8], stride: usize, len: usize, dim: usize) -> Rows<'_> {
    Rows { bytes, stride, len, dim, scales: None, ahead: &[] }
}

#[test]
fn scalar_is_always_available() {
    assert_eq!(Backend::available().last(), Some(Backend::SCALAR));
    assert_eq!(Backend::named("scalar"), Some(Backend::SCALAR));
    assert_eq!(Backend::named("sse9"), None);
}

/// The backend that [`Backend::detect`] chooses if there is nothing better.
#[test]
fn portable_comes_before_scalar() {
    let names: Vec<&str> = Backend::available().map(Backend::name).collect();
    assert!(names.ends_with(&["portable", "scalar"]), "{names:?}");
}

#[test]
fn names_are_distinct() {
    let mut names: Vec<&str> = Backend::available().map(Backend::name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), Backend::available().count());
}

/// `OCTAPLEX_REQUIRE=avx2,avx512` turns the absence of a backend into an error, so that none is
/// skipped silently.
#[test]
fn required_backends_are_available() {
    let required = std::env::var("OCTAPLEX_REQUIRE").unwrap_or_else(|_| String::from("portable,scalar"));
    for name in required.split(',') {
        assert!(Backend::named(name.trim()).is_some(), "OCTAPLEX_REQUIRE asks for {name}, this CPU lacks it");
    }
}

/// The control register of floats: MXCSR or FPCR.
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
mod environment {
    use core::arch::asm;
    use core::hint::black_box;
    use octaplex_arch::with_default_floats;

    /// Flushes denormals and rounds up.
    #[cfg(target_arch = "x86_64")]
    const OTHER: u32 = 0x1f80 | 0x8040 | 0x4000;
    #[cfg(target_arch = "aarch64")]
    const OTHER: u64 = 1 << 24 | 1 << 22;

    #[cfg(target_arch = "x86_64")]
    fn read() -> u32 {
        let mut word = 0;
        // SAFETY: x86-64 has SSE. The instruction stores four bytes at the address of `word`.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut word, options(nostack, preserves_flags)) };
        word & !0x3f // without the bits that only report
    }

    #[cfg(target_arch = "x86_64")]
    fn write(word: u32) {
        // SAFETY: the word has no reserved bits. The compiler must assume that memory changes.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const word, options(nostack, preserves_flags)) };
    }

    #[cfg(target_arch = "aarch64")]
    fn read() -> u64 {
        let word;
        // SAFETY: every AArch64 program may read FPCR.
        unsafe { asm!("mrs {}, fpcr", out(reg) word, options(nostack, preserves_flags)) };
        word
    }

    #[cfg(target_arch = "aarch64")]
    fn write(word: u64) {
        // SAFETY: the word has no reserved bits. The compiler must assume that memory changes.
        unsafe { asm!("msr fpcr, {}", in(reg) word, options(nostack, preserves_flags)) };
    }

    fn is_default() -> bool {
        let denormal = black_box(f32::MIN_POSITIVE) * black_box(0.5);
        denormal.to_bits() != 0 && black_box(1.0f32) + black_box(f32::EPSILON / 4.0) == 1.0
    }

    #[test]
    fn a_threads_own_environment_comes_back() {
        let before = read();
        write(OTHER);
        let (outside, inside) = (is_default(), with_default_floats(is_default));
        let panicked =
            std::panic::catch_unwind(|| with_default_floats(|| std::panic::resume_unwind(Box::new(0))));
        let after = read();
        write(before);
        assert!(!outside && inside && panicked.is_err());
        assert_eq!(after, OTHER);
    }
}

/// A host may have set a configuration of tiles, as ggml does. Kernels restore it.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[test]
fn a_hosts_configuration_of_tiles_is_restored() {
    use core::arch::asm;

    #[repr(C, align(64))]
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    struct Config([u8; 64]);

    let Some(backend) = Backend::named("amx") else {
        eprintln!("not tested: this CPU has no tiles");
        return;
    };
    let configured = |tiles: usize, bytes: u8, rows: u8| {
        let mut config = [0; 64];
        config[0] = 1;
        for tile in 0..tiles {
            (config[16 + 2 * tile], config[48 + tile]) = (bytes, rows);
        }
        Config(config)
    };
    for host in [Config([0; 64]), configured(3, 32, 5), configured(8, 64, 16)] {
        let left = std::thread::spawn(move || {
            if host.0[0] != 0 {
                // SAFETY: the CPU has tiles. The instruction reads 64 bytes.
                unsafe {
                    asm!("ldtilecfg [{}]", in(reg) &host, options(nostack, readonly, preserves_flags));
                }
            }
            // 64 queries and 64 rows, which tiles multiply.
            let packing = Packing::bits(4);
            let (bytes, values) = (vec![0x11; 64 * 66], vec![1; 128]);
            let queries: Vec<_> = (0..64).map(|_| IntQuery { values: &values, scale: 1.0 }).collect();
            let mut scores = vec![0.0; 64 * 64];
            backend.score_codes(packing, &[rows(&bytes, 66, 66, 128)], &[1; 16], 1.0, &queries, &mut scores);
            assert!(scores.iter().all(|score| *score == scores[0] && *score != 0.0));
            let mut left = Config([1; 64]);
            // SAFETY: the CPU has tiles. The instruction writes 64 bytes.
            unsafe { asm!("sttilecfg [{}]", in(reg) &mut left, options(nostack, preserves_flags)) };
            left
        })
        .join();
        assert_eq!(left.unwrap(), host);
    }
}

/// Every f16 and bf16 and what lies around their middles, and floats of all exponents.
#[test]
fn conversions_of_floats_round_to_nearest_even() {
    let step = if cfg!(miri) { 65_537 } else { 251 };
    let check = |bits: u32| {
        let x = f32::from_bits(bits);
        assert_eq!(f32_to_f16(x), half::f16::from_f32(x).to_bits(), "{x:e}");
        assert_eq!(f32_to_bf16(x), half::bf16::from_f32(x).to_bits(), "{x:e}");
    };
    (0..=u32::MAX).step_by(step).for_each(check);
    for half in (0..=u16::MAX).step_by(step / 250 + 1) {
        let bits = half::f16::from_bits(half).to_f32().to_bits();
        assert!(f32::from_bits(bits).is_nan() || f16_to_f32(half).to_bits() == bits, "{half:#x}");
        for bits in [bits, bits + 0x1000, u32::from(half) << 16, (u32::from(half) << 16) + 0x8000] {
            for offset in [0, 1, 2, u32::MAX] {
                check(bits.wrapping_add(offset));
            }
        }
    }
}

#[test]
fn exp_is_within_its_error() {
    let step = if cfg!(miri) { 97 << 16 } else { 97 };
    let x: Vec<f32> = (0..0x42ae_0000u32).step_by(step).map(|bits| -f32::from_bits(bits)).collect();
    let mut weights = x.clone();
    let _ = Backend::SCALAR.exp_weights(&mut weights, 0.0);
    let error = |(x, weight): (&f32, &f32)| (f64::from(*weight) / f64::from(*x).exp() - 1.0).abs();
    let worst = x.iter().zip(&weights).map(error).fold(0.0, f64::max);
    assert!(worst < 1.5e-7, "{worst:e}");
    for (x, expected) in
        [(0.0, 1.0), (-0.0, 1.0), (-87.0, 0.0), (-88.0, 0.0), (-1e30, 0.0), (f32::NEG_INFINITY, 0.0)]
    {
        let mut weight = [x];
        let _ = Backend::SCALAR.exp_weights(&mut weight, 0.0);
        assert_eq!(weight[0].to_bits(), f32::to_bits(expected), "{x}");
    }
    let mut weight = [f32::NAN];
    let _ = Backend::SCALAR.exp_weights(&mut weight, 0.0);
    assert_eq!(weight[0].to_bits(), 0);
}

#[test]
fn caps_are_within_their_error() {
    for cap in [1.0f32, 30.0, 50.0] {
        let x: Vec<f32> = (-4000..4000).map(|i| i as f32 * 0.05).collect();
        let mut capped = x.clone();
        Backend::SCALAR.soft_cap(&mut capped, cap);
        for (x, y) in x.iter().zip(capped) {
            let exact = f64::from(cap) * (f64::from(*x) / f64::from(cap)).tanh();
            assert!((f64::from(y) - exact).abs() < 2e-7 * f64::from(cap), "{x} capped at {cap}");
        }
    }
}

#[test]
fn offered_widths_have_a_base() {
    for (width, expected) in
        [(32, 1), (80, 20), (96, 12), (112, 28), (160, 20), (192, 12), (512, 1), (576, 144)]
    {
        assert_eq!(hadamard::base(width), Some(expected), "width {width}");
    }
    assert_eq!(hadamard::base(100), None);
    assert_eq!(hadamard::base(0), None);
}

/// The largest factors and centroids in all signs, so that sums nearly fill an `i32`. Some kernels keep
/// two sums in one integer.
#[test]
fn the_largest_sums_are_exact() {
    let dim = 576;
    for (bits, factor, centroid) in [(4, 127, 127), (5, 1023, 2047)] {
        let packing = Packing::bits(bits);
        let row: Vec<u8> = [0x00, 0x3c].into_iter().chain(vec![0; packing.bytes(dim)]).collect();
        let (len, bytes) = (row.len(), row.repeat(256));
        for signs in 0..8 {
            let sign = |bit: i32| 1 - 2 * (signs >> bit & 1) as i16;
            let centroids = vec![centroid * sign(2); 1 << bits];
            let values = [0, 1].map(|query| vec![factor * sign(query); dim]);
            let queries = [&values[0], &values[1]].map(|values| IntQuery { values, scale: 1.0 });
            let expected =
                [0, 1].map(|query| i32::from(values[query][0]) * i32::from(centroids[0]) * dim as i32);
            let weights = [0, 1].map(|query| [f32::from(sign(query)); 256]).concat();
            let mut sums_of_scalar = vec![0.0; 2 * dim];
            let page = &[rows(&bytes, len, len, dim)];
            Backend::SCALAR.accumulate_codes(packing, page, &centroids, 0.25, &weights, &mut sums_of_scalar);
            for (query, sums) in sums_of_scalar.chunks(dim).enumerate() {
                let exact = f32::from(sign(query as i32)) * f32::from(centroids[0]) * 64.0;
                assert!(sums.iter().all(|sum| (sum / exact - 1.0).abs() < 1e-3), "{bits} bits");
            }
            for backend in Backend::available() {
                let mut scores = [0.0; 2];
                let one = &[rows(&row, len, len, dim)];
                backend.score_codes(packing, one, &centroids, 1.0, &queries, &mut scores);
                assert_eq!(scores, expected.map(|sum| sum as f32), "{bits} bits, {}", backend.name());
                let mut sums = vec![0.0; 2 * dim];
                backend.accumulate_codes(packing, page, &centroids, 0.25, &weights, &mut sums);
                assert_eq!(sums, sums_of_scalar, "{bits} bits, {}", backend.name());
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn units_by_reciprocals_are_exact() {
    for members in 1..=u8::MAX {
        let (reciprocal, shift) = internals::unit_reciprocal(members);
        for code in 0..24 * u32::from(members) {
            let unit = ((4 * code * u32::from(reciprocal)) >> 16) >> shift;
            assert_eq!(unit, code / u32::from(members), "code {code} of {members} members");
        }
    }
}

/// Rows are packed as they are written. With other bits they are not, except where these are a
/// code's or a radius's.
#[test]
fn other_bytes_are_not_packed() {
    for (members, radius_bits, radix, chunks) in
        [(96, 4, true, 32), (3, 2, true, 15), (192, 3, true, 20), (255, 6, false, 33), (1, 5, false, 16)]
    {
        let layout = ChunkLayout { chunks, members, radius_bits, radix, flags: false };
        let pack = |codes: &[u16], radii: &[u8], row: &mut [u8]| {
            Backend::SCALAR.pack_chunks(&layout, codes, radii, row);
        };
        let codes: Vec<u16> = (0..chunks).map(|i| (i as u32 * 977 % layout.codes()) as u16).collect();
        let mut radii = vec![layout.radius_limit(); chunks];
        let mut row = vec![0x5a; layout.row_bytes()];
        pack(&codes, &radii, &mut row);
        assert!(layout.is_packed(&row) && !layout.is_packed(&row[1..]));
        let (mut others, mut back, mut lengths) = (0, vec![0; chunks], vec![0; chunks]);
        for bit in 16..8 * row.len() {
            row[bit / 8] ^= 1 << (bit % 8);
            internals::unpack_chunks(&layout, &row, &mut back, &mut lengths);
            let mut again = row.clone();
            pack(&back, &lengths, &mut again);
            let without = back.iter().zip(&lengths).any(|(code, radius)| *radius == 0 && *code > 0);
            assert_eq!(layout.is_packed(&row), again == row && !without, "{members} members, bit {bit}");
            others += usize::from(!layout.is_packed(&row));
            row[bit / 8] ^= 1 << (bit % 8);
        }
        assert!(others > 0 || !radix, "{members} members: {others}");
        radii[1] = 0;
        pack(&codes, &radii, &mut row);
        assert!(!layout.is_packed(&row), "a direction without a radius");
    }
}

/// Scales beyond the bytes are not read, even if there is memory.
#[test]
fn scales_behind_the_bytes_are_refused() {
    for (length, fits) in [(3, false), (4, true)] {
        let bytes = &[0; 8][..length];
        let rows = rows(bytes, 2, 1, 8);
        assert_eq!(rows.count(), 2);
        assert_eq!(catch_unwind(|| internals::two_scales(&rows)).is_ok(), fits, "{length} bytes");
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        assert_eq!(internals::two_halves(&rows).is_some(), fits, "{length} bytes");
    }
}

/// Long rows prefetch their own later bytes. Short rows, and rows with `ahead`, do not.
#[test]
fn long_rows_prefetch_their_later_bytes() {
    fn of<'a>(bytes: &'a [u8], ahead: &'a [u8]) -> Rows<'a> {
        Rows { bytes, stride: 66, len: 66, dim: 128, scales: None, ahead }
    }
    for backend in Backend::available() {
        let own = internals::prefetches(backend);
        let (ahead, long) = own.unwrap_or((1 << 13, 1 << 16));
        let bytes = vec![0; 66 * (long / 66 + 1)];
        let all = |rows: Rows| internals::prefetched(backend, &rows, 0, usize::MAX).len();
        assert_eq!(all(of(&bytes, &[])), own.map_or(0, |_| bytes.len() - ahead));
        assert_eq!(all(of(&bytes[..66 * (long / 66)], &[])), 0);
        assert_eq!(all(of(&bytes, &bytes[..9])), 9);
        let rows = of(&bytes, &bytes[ahead..]);
        let later = internals::prefetched(backend, &rows, 2, 3);
        assert_eq!(later.as_ptr(), bytes[ahead + 2 * 66..].as_ptr());
    }
}

/// Blocks of sixteen rows.
#[cfg(target_arch = "x86_64")]
mod blocks {
    use super::rows;
    use octaplex_arch::internals::{Block, Blocks, ROWS};
    use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};

    /// Returns whether a call fails with an assertion: an overflow would panic in tests only. Under
    /// Miri, which is slow, panics are not printed.
    fn refused(call: &dyn Fn()) -> bool {
        if cfg!(miri) {
            set_hook(Box::new(|_| {}));
        }
        let outcome = catch_unwind(AssertUnwindSafe(call));
        if cfg!(miri) {
            drop(take_hook());
        }
        outcome.is_err_and(|panic| {
            panic.downcast_ref::<&str>().is_some_and(|words| words.starts_with("assertion"))
        })
    }

    /// Everything that a window lets kernels read lies within the bytes, which are exactly as many
    /// as its check requires.
    #[test]
    fn windows_lie_in_the_bytes() {
        let step = if cfg!(miri) { 13 } else { 1 };
        for stride in (0..=70).step_by(step) {
            for start in 0..=8 {
                for length in (0..=64).step_by(step) {
                    let bytes = vec![0; (ROWS - 1) * stride + start + length];
                    let window = Block::new(&bytes, stride).window(start, start + length);
                    let place = |pointer: *const u8| pointer as usize - bytes.as_ptr() as usize;
                    for r in 0..ROWS {
                        let row = place(window.row(r));
                        assert_eq!(row, start + r * stride);
                        assert!(row + length <= bytes.len(), "row {r} of {length} bytes every {stride}");
                        if length >= 2 && stride >= 2 {
                            let word = place(window.word_in_place(r).as_ptr());
                            assert!(word + 16 <= bytes.len(), "word {r} from {start} every {stride}");
                            assert_eq!(word + 2 * (r % 8), row);
                        }
                    }
                }
            }
        }
    }

    /// A window that ends behind the last row is refused.
    #[test]
    fn windows_behind_the_bytes_are_refused() {
        for stride in [0, 1, 2, 5, 70] {
            let bytes = vec![0; (ROWS - 1) * stride + 7];
            let refuses = |start, end| refused(&|| _ = Block::new(&bytes, stride).window(start, end));
            assert!(!refuses(3, 7) && refuses(3, 8) && refuses(7, 6));
        }
    }

    /// Reads longer than the window are refused, and so are words whose neighbours lie outside the
    /// later rows.
    #[test]
    fn reads_longer_than_their_window_are_refused() {
        let bytes = [0; 256];
        for (stride, length) in (0..=3).flat_map(|stride| (0..=9).map(move |length| (stride, length))) {
            let window = Block::new(&bytes, stride).window(64, 64 + length);
            let case = format!("{length} bytes every {stride}");
            assert_eq!(refused(&|| _ = window.word(1)), length < 2, "{case}");
            assert_eq!(refused(&|| _ = window.first::<3>(1)), length < 3, "{case}");
            assert_eq!(refused(&|| _ = window.quad(1)), length < 8, "{case}");
            assert_eq!(refused(&|| _ = window.word_in_place(8)), length < 2 || stride < 2, "{case}");
            assert!(refused(&|| _ = window.row(ROWS)) && refused(&|| _ = window.word_in_place(ROWS)));
        }
    }

    /// Blocks are the rows in order, for every number and distance of rows. Behind the last row are
    /// zeros.
    #[test]
    fn blocks_are_the_rows() {
        for len in 2..=if cfg!(miri) { 3 } else { 20 } {
            for stride in (len - 2).max(1)..=len + 3 {
                for count in 0..=40usize {
                    let end = if count == 0 { 0 } else { (count - 1) * stride + len };
                    let bytes: Vec<u8> = (0..end).map(|i| (i * 29 % 251) as u8).collect();
                    let rows = rows(&bytes, stride, len, 8);
                    assert_eq!(rows.count(), count);
                    let mut padded = None;
                    let blocks = Blocks::new(&rows, &mut padded);
                    for r in 0..count.next_multiple_of(ROWS) {
                        let block = blocks.get(r / ROWS);
                        for at in 0..=len - 2 {
                            let found = block.window(at, at + 2).first::<2>(r % ROWS);
                            let case = format_args!("{r} of {count} rows of {len} every {stride}");
                            if r < count {
                                assert_eq!(found, &bytes[r * stride + at..][..2], "{case}");
                            } else if stride >= len {
                                assert_eq!(found, &[0; 2], "{case}");
                            }
                        }
                    }
                }
            }
        }
    }
}

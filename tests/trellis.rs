//! The trellis codec: its tables, its search against a textbook one, its distortion.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)] // tests fail by panicking

mod backends;

use crate::common::{Random, build, decode_rows, encode_rows, share, signs, try_build};
use octaplex::codebook::{TRELLIS_LEVELS, TRELLIS_STATES, trellis};
#[cfg(feature = "alloc")]
use octaplex::codecs::Codec; // methods of boxed codecs
#[cfg(target_os = "linux")]
use octaplex::codecs::Trellis;
use octaplex::codecs::{HeadId, TrellisSpec};
use octaplex::{Backend, CodecSpec};

fn pairs() -> impl Iterator<Item = (usize, usize)> {
    TRELLIS_STATES.into_iter().flat_map(|states| TRELLIS_LEVELS.map(|levels| (states, levels)))
}

#[test]
fn tables_are_complete_ascend_and_use_their_range() {
    for (states, levels) in pairs() {
        let book = trellis(states, levels).unwrap();
        let (codebook, kappa) = (*book.codebook(), book.kappa());
        assert_eq!((codebook.states(), codebook.levels()), (states, levels));
        assert_eq!(codebook.centroids().len(), 2 * states * levels);
        for window in 0..codebook.windows() {
            let row: Vec<i8> =
                codebook.centroids().iter().skip(window).step_by(2 * states).copied().collect();
            assert!(row.is_sorted(), "{states} states, {levels} levels, window {window}: {row:?}");
        }
        let max = codebook.centroids().iter().map(|c| c.unsigned_abs()).max();
        assert_eq!(max, Some(127), "{states} states, {levels} levels");
        // The outermost centroid is 1.1 to 4.5 standard deviations from 0.
        assert!((127.0 / 4.5..127.0 / 1.1).contains(&kappa), "{states} states, {levels} levels: {kappa}");
        // No side is favoured.
        let sum: i32 = codebook.centroids().iter().map(|c| i32::from(*c)).sum();
        assert!(sum.unsigned_abs() as usize <= 6 * codebook.centroids().len(), "{states} x {levels}: {sum}");
    }
    for (states, levels) in [(2, 4), (128, 4), (8, 0), (8, 5), (8, 32), (0, 1)] {
        assert_eq!(trellis(states, levels), None);
    }
}

#[test]
fn blocks_have_the_documented_sizes() {
    for (dim, sizes) in [
        (64, [10, 18, 23, 26, 31, 34, 39, 42]),
        (96, [14, 26, 34, 38, 46, 50, 58, 62]),
        (128, [18, 34, 44, 50, 60, 66, 76, 82]),
    ] {
        for (levels, bytes) in TRELLIS_LEVELS.into_iter().zip(sizes) {
            for states in TRELLIS_STATES {
                let spec: CodecSpec = format!("trellis:m={levels},states={states}").parse().unwrap();
                assert_eq!(spec.block_bytes(dim), bytes, "{spec} at {dim}");
                assert_eq!(try_build(spec, dim, Backend::SCALAR).unwrap().block_bytes(), bytes);
            }
        }
    }
}

/// The table as the definition has it: by newest path bit first, in standard deviations.
struct Textbook {
    history: usize,
    rows: Vec<Vec<f64>>,
}

impl Textbook {
    fn new(states: usize, levels: usize) -> Self {
        let book = trellis(states, levels).unwrap();
        let history = states.trailing_zeros() as usize;
        let centroid = |bits: usize, code: usize| {
            // Bit i of `bits` is the path bit i coordinates ago; a stored window has the oldest lowest.
            let window: usize = (0..=history).map(|i| (bits >> i & 1) << (history - i)).sum();
            f64::from(book.codebook().centroids()[code * 2 * states + window]) / f64::from(book.kappa())
        };
        let rows =
            (0..2 * states).map(|bits| (0..levels).map(|code| centroid(bits, code)).collect()).collect();
        Self { history, rows }
    }

    /// The least squared error of any path and codes, by plain dynamic programming over the last path bits.
    fn least_error(&self, y: &[f64]) -> f64 {
        let states = 1 << self.history;
        let mut least = vec![f64::INFINITY; states];
        least[0] = 0.0;
        for y in y {
            let mut next = vec![f64::INFINITY; states];
            for (state, cost) in least.iter().enumerate() {
                for bit in 0..2 {
                    let bits = state << 1 | bit;
                    let error =
                        self.rows[bits].iter().map(|c| (y - c) * (y - c)).fold(f64::INFINITY, f64::min);
                    let new = &mut next[bits % states];
                    *new = new.min(cost + error);
                }
            }
            least = next;
        }
        least.into_iter().fold(f64::INFINITY, f64::min)
    }
}

/// Reads a block by the definition: path bits in order, raw bits, base-3 digits five to a byte.
fn read_block(book: &Textbook, block: &[u8], dim: usize) -> Vec<f64> {
    let levels = book.rows[0].len();
    let bit = |plane: &[u8], i: usize| usize::from(plane[i / 8] >> (i % 8) & 1);
    let (path, rest) = block[2..].split_at(dim / 8);
    let raw_bits = levels.trailing_zeros() as usize;
    let (raw, digits) = rest.split_at(dim * raw_bits / 8);
    let mut bits = 0;
    (0..dim)
        .map(|t| {
            bits = (bits << 1 | bit(path, t)) % book.rows.len();
            let low: usize = (0..raw_bits).map(|i| bit(raw, t * raw_bits + i) << i).sum();
            let digit = match levels >> raw_bits {
                3 => usize::from(digits[t / 5]) / 3usize.pow(t as u32 % 5) % 3,
                _ => 0,
            };
            book.rows[bits][digit << raw_bits | low]
        })
        .collect()
}

#[test]
fn blocks_say_what_the_definition_says_and_the_search_finds_the_least_error() {
    let mut random = Random::new(70);
    for dim in [32, 80, 128] {
        let h = crate::oracle::hadamard(dim);
        for (states, levels) in pairs() {
            let book = Textbook::new(states, levels);
            let codec = build(&format!("trellis:m={levels},states={states},gain=norm"), dim);
            let x = random.gaussians(dim);
            let block = encode_rows(&*codec, &x);
            let centroids = read_block(&book, &block, dim);
            // Outputs are accumulated in the rotated basis.
            let mut acc = vec![0.0; dim];
            codec.accumulate(&[1.0], &block, &mut acc).unwrap();
            let x = crate::oracle::to_f64(&x);
            let norm = crate::oracle::dot(&x, &x).sqrt();
            let deviation = norm / (dim as f64).sqrt();
            for (acc, centroid) in acc.iter().zip(&centroids) {
                let what = format!("{states} x {levels} at {dim}");
                assert!((f64::from(*acc) - deviation * centroid).abs() < 2e-3 * deviation, "{what}: {acc}");
            }
            let z = crate::oracle::rotate(&h, &signs(0, HeadId::default(), dim), 1, &x);
            let y: Vec<f64> = z.iter().map(|z| z / deviation).collect();
            let error: f64 = y.iter().zip(&centroids).map(|(y, c)| (y - c) * (y - c)).sum();
            let least = book.least_error(&y);
            assert!(
                (error / least - 1.0).abs() < 1e-4,
                "{states} x {levels} at {dim}: {error}, the textbook has {least}"
            );
        }
    }
}

fn distortion(spec: &str, dim: usize, vectors: usize) -> f64 {
    let x = Random::new(71).gaussians(vectors * dim);
    let codec = build(spec, dim);
    let decoded = decode_rows(&*codec, &encode_rows(&*codec, &x));
    crate::oracle::distortion(&crate::oracle::to_f64(&x), &crate::oracle::to_f64(&decoded))
}

/// The numbers of the table of docs/trellis.md that begins with `head`, line by line. Other cells are left out.
fn documented(head: &str) -> Vec<Vec<f64>> {
    let lines = include_str!("../docs/trellis.md").lines().skip_while(|line| !line.starts_with(head)).skip(2);
    let lines = lines.take_while(|line| line.starts_with('|'));
    lines.map(|line| line.split('|').filter_map(|cell| cell.trim().parse().ok()).collect()).collect()
}

/// Errors of a number of docs/trellis.md that is not within 1%, or half a unit of its last digit. The sampling noise is
/// 0.2%.
#[test]
fn distortions_are_the_documented_ones() {
    let rows = documented("| states | m=1 | 2 | 3 | 4 | 6 | 8 | 12 | 16 |");
    let states: Vec<f64> = rows.iter().map(|row| row[0]).collect();
    assert_eq!(states, TRELLIS_STATES.map(|states| states as f64));
    let mut failures = Vec::new();
    for (states, row) in TRELLIS_STATES.into_iter().zip(&rows) {
        assert_eq!(row.len(), 1 + TRELLIS_LEVELS.len(), "{states} states");
        for (levels, expected) in TRELLIS_LEVELS.into_iter().zip(&row[1..]) {
            let measured = distortion(&format!("trellis:m={levels},states={states}"), 128, 3000);
            let half_unit = if levels < 12 { 0.000_05 } else { 0.000_005 };
            if (measured - expected).abs() > 0.01 * expected + half_unit {
                failures.push(format!("{states} states, m={levels}: {measured:.6} ({expected})"));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Gain norm, which no page has: D = 64, 128, 256. At most 1% worse; the sampling noise is 0.2%. A code that is much
/// better would not be this code.
#[test]
fn distortions_with_exact_norms_stay_as_they_are() {
    let documented = [
        (8, 1, [0.3074, 0.3051, 0.3039]),
        (8, 2, [0.0834, 0.0826, 0.0822]),
        (8, 3, [0.0379, 0.0376, 0.0374]),
        (8, 4, [0.0217, 0.0215, 0.0213]),
        (8, 6, [0.0098, 0.0097, 0.0097]),
        (8, 8, [0.0056, 0.0055, 0.0055]),
        (8, 12, [0.00265, 0.00263, 0.00262]),
        (8, 16, [0.00159, 0.00157, 0.00156]),
        (16, 2, [0.0807, 0.0799, 0.0792]),
        (16, 3, [0.0369, 0.0363, 0.0360]),
        (16, 4, [0.0208, 0.0206, 0.0204]),
        (16, 6, [0.0094, 0.0092, 0.0092]),
        (16, 8, [0.0054, 0.0053, 0.0052]),
        (16, 12, [0.0027, 0.0027, 0.0027]),
        (16, 16, [0.0016, 0.0016, 0.0016]),
        (64, 2, [0.0780, 0.0762, 0.0751]),
        (64, 3, [0.0351, 0.0342, 0.0339]),
        (64, 4, [0.0199, 0.0194, 0.0192]),
        (64, 6, [0.0092, 0.0089, 0.0088]),
        (64, 8, [0.0053, 0.0052, 0.0052]),
    ];
    let mut failures = Vec::new();
    for (states, levels, expected) in documented {
        for (dim, expected) in [64, 128, 256].into_iter().zip(expected) {
            let measured =
                distortion(&format!("trellis:m={levels},states={states},gain=norm"), dim, 400_000 / dim);
            if !(0.75 * expected..1.01 * expected).contains(&measured) {
                failures.push(format!("{states} states, m={levels}, D={dim}: {measured:.6} ({expected})"));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// dB above D = 2^(-2R), everything stored counted.
#[test]
fn less_than_two_decibels_above_the_shannon_bound() {
    for (spec, rate) in
        [("trellis:m=2", 2.125), ("trellis:m=2,states=16", 2.125), ("trellis:m=4,states=16", 3.125)]
    {
        let bits = spec.parse::<CodecSpec>().unwrap().bits_per_value(128);
        assert_eq!(bits, rate, "{spec}");
        let gap = 20.0 * 2f64.log10() * bits + 10.0 * distortion(spec, 128, 6000).log10();
        assert!((1.2..2.0).contains(&gap), "{spec}: {gap:.3} dB");
    }
}

/// More states are never worse, and more levels much better.
#[test]
fn more_costs_buy_less_distortion() {
    let at =
        |states: usize, levels: usize| distortion(&format!("trellis:m={levels},states={states}"), 128, 1500);
    for levels in TRELLIS_LEVELS {
        let by_states = TRELLIS_STATES.map(|states| at(states, levels));
        assert!(by_states.is_sorted_by(|fewer, more| more < fewer), "m={levels}: {by_states:?}");
    }
    let by_levels = TRELLIS_LEVELS.map(|levels| at(8, levels));
    assert!(by_levels.is_sorted_by(|fewer, more| *more < 0.8 * fewer), "{by_levels:?}");
}

/// Scales are tried for each vector on its own and the best is kept, alone and in pages; the shares are docs/trellis.md's.
#[test]
fn more_scales_are_never_worse() {
    let x = Random::new(72).gaussians(400 * 128);
    let shares = documented("| scales | m = 2, D = 64 | 128 | m = 4, D = 64 | 128 | m = 8, D = 64 | 128 |");
    let [three, five] = &shares[..] else { panic!("{shares:?}") };
    assert_eq!([three.len(), five.len(), three[0] as usize, five[0] as usize], [7, 7, 3, 5]);
    let columns = [(64, 2), (128, 2), (64, 4), (128, 4), (64, 8), (128, 8)].into_iter();
    for ((dim, levels), (three, five)) in columns.zip(three[1..].iter().zip(&five[1..])) {
        let documented = [*three as f32, *five as f32];
        let errors = [1, 3, 5].map(|scales| {
            let codec = build(&format!("trellis:m={levels},scales={scales}"), dim);
            let blocks = encode_rows(&*codec, &x);
            let mut alone = vec![0; codec.block_bytes()];
            codec.encode(&x[17 * dim..18 * dim], &mut alone).unwrap();
            assert_eq!(blocks[17 * alone.len()..18 * alone.len()], alone, "m={levels}, scales={scales}");
            let decoded = decode_rows(&*codec, &blocks);
            let error = |(x, y): (&[f32], &[f32])| x.iter().zip(y).map(|(a, b)| (a - b) * (a - b)).sum();
            x.chunks(dim).zip(decoded.chunks(dim)).map(error).collect::<Vec<f32>>()
        });
        for (fewer, more) in errors.iter().zip(&errors[1..]) {
            // A norm is rounded to f16.
            assert!(fewer.iter().zip(more).all(|(fewer, more)| *more <= 1.001 * fewer), "m={levels}");
        }
        let [one, three, five] = errors.map(|errors| errors.iter().sum::<f32>());
        for (share, documented) in [three / one, five / one].into_iter().zip(documented) {
            assert!((share - documented).abs() < 0.01, "m={levels}: {share}, documented {documented}");
        }
    }
    for refused in ["trellis:scales=0", "trellis:scales=2", "trellis:scales=7"] {
        let expected = Err(octaplex::Error::Value { at: 15, key: "scales", allowed: "1, 3, 5" });
        assert_eq!(refused.parse::<CodecSpec>(), expected);
    }
    let spec = TrellisSpec::new(4, 8).scales(2).into();
    assert!(matches!(
        try_build(spec, 64, Backend::SCALAR),
        Err(octaplex::Error::Value { key: "scales", .. })
    ));
}

#[test]
fn every_backend_treats_random_vectors_alike() {
    let vectors = backends::random_vectors_agree();
    assert!(vectors >= share(110_000), "{vectors}");
}

#[test]
fn every_backend_treats_adversarial_vectors_alike() {
    let [encoded, all] = backends::adversarial_vectors_agree();
    assert!(all >= 4400 && encoded >= 1000, "{encoded} of {all}");
}

/// Planes count the index of a value over all rows, as pages of blocks do; rows are encoded sixteen at a time.
#[test]
fn planes_name_the_value_that_is_not_finite() {
    for spec in ["trellis", "trellis:m=2,scales=3", "turboquant"] {
        let codec = build(spec, 64);
        let octaplex::codecs::Pages::Lean(planes) = codec.pages() else { panic!("{spec} has no planes") };
        for index in [5, 64 + 63, 17 * 64, 39 * 64 + 1] {
            let mut x = Random::new(75).gaussians(40 * 64);
            (x[index], x[40 * 64 - 1]) = (f32::NAN, f32::INFINITY);
            let expected = Err(octaplex::Error::NonFinite { index });
            let mut bytes = vec![0; 40 * planes.plane_bytes()];
            assert_eq!(planes.encode_planes(&x, &mut bytes, &mut [0.0; 40]), expected, "{spec}");
            let mut blocks = vec![0; 40 * codec.block_bytes()];
            assert_eq!(codec.encode_page(&x, &mut blocks).map(|_| ()), expected, "{spec}");
        }
    }
}

/// Encodes one vector on a thread with 16 KiB of stack, start-up frames included. A stack overflow would abort the test
/// process.
#[cfg(target_os = "linux")]
#[test]
fn a_small_machine_encodes_in_16_kib() {
    let spec = TrellisSpec::new(4, 8);
    let codec = Trellis::<128>::build(spec, Backend::SCALAR, HeadId::default()).unwrap();
    let x: [f32; 128] = Random::new(74).gaussians(128).try_into().unwrap();
    let mut expected = [0; 50];
    codec.encode(&x, &mut expected).unwrap();
    let thread = std::thread::Builder::new().stack_size(16 << 10);
    let encode = move || {
        let mut block = [0; 50];
        codec.encode(&x, &mut block).map(|()| block)
    };
    assert_eq!(thread.spawn(encode).unwrap().join().unwrap().unwrap(), expected);
}

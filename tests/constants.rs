//! Tests values just below, at and just above every named constant of the codecs that decides bytes or errors, on every
//! backend.

#![cfg(feature = "alloc")]
#![allow(clippy::unwrap_used, clippy::type_complexity, clippy::manual_range_contains)]

use half::f16;
use octaplex::codecs::{Codec, HeadId, MAX_WEIGHT};
use octaplex::{Backend, CodecSpec, Error};

/// The one place that knows how a codec is built.
fn codec(spec: &str, dim: usize, backend: Backend) -> Box<dyn Codec> {
    spec.parse::<CodecSpec>().unwrap().build_dyn(dim, backend, HeadId::default()).unwrap()
}

fn all_codecs() -> impl Iterator<Item = (&'static str, Backend)> {
    CodecSpec::all().iter().flat_map(|codec| Backend::available().map(move |backend| (codec.name, backend)))
}

/// Returns the vector whose rotation with seed 0 is `first` in coordinate 0 and `rest` in all others.
fn unrotated(dim: usize, first: f32, rest: f32) -> Vec<f32> {
    let int = codec("int:bits=8,rotate=true", dim, Backend::SCALAR);
    let axes = |first: u8, rest: u8| {
        let mut block = vec![rest; dim + 2];
        block[..2].copy_from_slice(&f16::ONE.to_le_bytes());
        block[2] = first;
        int.decode_rows(&block).unwrap()
    };
    axes(129, 128).iter().zip(axes(128, 129)).map(|(a, b)| first * a + rest * b).collect()
}

fn scaled(x: &[f32], scale: f32) -> Vec<f32> {
    x.iter().map(|x| x * scale).collect()
}

fn head(block: &[u8]) -> f32 {
    f16::from_le_bytes([block[0], block[1]]).to_f32()
}

/// 2⁵⁸ for queries and stored floats, 2³² for weights.
#[test]
fn the_largest_queries_and_weights() {
    let (limit, dim) = (2f32.powi(58), 128);
    for (name, backend) in all_codecs() {
        let codec = codec(name, dim, backend);
        let block = codec.encode_rows(&vec![0.5; dim]).unwrap();
        for (value, result) in [
            (limit.next_down(), Ok(())),
            (limit, Err(Error::Overflow)),
            (-limit, Err(Error::Overflow)),
            (f32::INFINITY, Err(Error::NonFinite { index: 5 })),
            (f32::NAN, Err(Error::NonFinite { index: 5 })),
        ] {
            let mut query = vec![1.0; dim];
            query[5] = value;
            assert_eq!(codec.score_rows(&query, &block).map(|_| ()), result, "{name} {value}");
        }
        for (weight, result) in [
            (MAX_WEIGHT, Ok(())),
            (-MAX_WEIGHT, Ok(())),
            (MAX_WEIGHT.next_up(), Err(Error::Weight { index: 0 })),
            (-MAX_WEIGHT.next_up(), Err(Error::Weight { index: 0 })),
            (f32::NAN, Err(Error::NonFinite { index: 0 })),
        ] {
            assert_eq!(codec.attend_rows(&[weight], &block).map(|_| ()), result, "{name} {weight}");
        }
    }
}

#[test]
fn the_largest_values_that_are_stored() {
    let limit = 2f32.powi(58);
    for backend in Backend::available() {
        for (spec, smallest) in [
            ("f16", 65520.0),
            ("bf16", limit * (1.0 - 1.0 / 512.0)),
            ("f32", limit),
            ("qjl", 65520.0),
            ("turboquant:gain=norm", 65520.0),
            ("polarquant", 65520.0),
            ("hqmq", 65520.0),
            ("int:bits=2", 65520.0),
            ("octopus:gain=norm", 65520.0),
            ("octopus:gain=norm,norm=f32", limit),
        ] {
            let codec = codec(spec, 128, backend);
            let encode = |value: f32| {
                let mut x = [0.0; 128];
                x[7] = value;
                codec.encode_rows(&x)
            };
            // A norm is a square root of a square; that of the next smaller float may be this one.
            let below =
                if spec.contains("norm=f32") { smallest * (1.0 - 1e-6) } else { smallest.next_down() };
            assert_eq!(encode(smallest), Err(Error::Overflow), "{spec}");
            assert!(codec.decode_rows(&encode(below).unwrap()).is_ok(), "{spec}");
            assert!(encode(-below).is_ok(), "{spec}");
        }
    }
}

/// A scale of all ones in its exponent, a stored float of 2⁵⁸, a residual of 16 norms: nothing that `encode` writes.
#[test]
fn the_largest_scales_that_are_read() {
    let residual = |dim: usize, bytes: usize| bytes - dim / 8 - 2;
    let first = |_: usize, _: usize| 0;
    type Place = fn(usize, usize) -> usize;
    let half = [(0x7bffu32, true), (0x7c00, false), (0xfbff, true), (0xfc00, false)];
    let bfloat = [(0x5c7f, true), (0x5c80, false), (0xdc7f, true), (0xdc80, false)];
    let float = [(0x5c7f_ffff, true), (0x5c80_0000, false), (0xdc7f_ffff, true), (0xdc80_0000, false)];
    let sixteen = [(0x4bff, true), (0x4c00, false), (0xcbff, true), (0xcc00, false)];
    let fields: [(&str, Place, usize, [(u32, bool); 4]); 17] = [
        ("f16", first, 2, half),
        ("bf16", first, 2, bfloat),
        ("f32", first, 4, float),
        ("qjl", first, 2, half),
        ("turboquant", first, 2, half),
        ("turboquant-qjl", first, 2, half),
        ("turboquant-qjl", residual, 2, half),
        ("octopus", first, 2, half),
        ("octopus:norm=f32", first, 4, float),
        ("octopus-qjl", first, 2, half),
        ("octopus-qjl:norm=f32", first, 4, float),
        ("octopus-qjl", residual, 2, sixteen),
        ("polarquant", first, 2, half),
        ("hqmq", first, 2, half),
        ("trellis", first, 2, half),
        ("int", first, 2, half),
        ("int:asymmetric=true", |_, _| 2, 2, half),
    ];
    for backend in Backend::available() {
        for (spec, at, bytes, values) in fields {
            let codec = codec(spec, 128, backend);
            let mut blocks = codec.encode_rows(&[0.5; 3 * 128]).unwrap();
            let at = codec.block_bytes() + at(128, codec.block_bytes());
            for (bits, fits) in values {
                blocks[at..at + bytes].copy_from_slice(&bits.to_le_bytes()[..bytes]);
                let expected = if fits { Ok(()) } else { Err(Error::Corrupt { block: 1 }) };
                assert_eq!(codec.decode_rows(&blocks).map(|_| ()), expected, "{spec} {bits:x}");
                assert_eq!(codec.score_rows(&[1e-9; 128], &blocks).map(|_| ()), expected, "{spec} {bits:x}");
                assert_eq!(codec.attend_rows(&[1e-9; 3], &blocks).map(|_| ()), expected, "{spec} {bits:x}");
            }
        }
    }
}

/// Norms below 2⁻³⁰ are stored as zero. In f16 this changes no byte: no gain exceeds 19.7, and f16 rounds values below 2⁻²⁵ to zero.
#[test]
fn the_smallest_norms() {
    for backend in Backend::available() {
        for (spec, dim, x, zero, smallest) in [
            ("qjl", 64, unrotated(64, 1.0, 0.0), -25.0, -24.9),
            ("turboquant:gain=norm", 64, unrotated(64, 1.0, 0.0), -25.0, -24.9),
            ("octopus:gain=norm", 64, unrotated(64, 1.0, 0.0), -25.01, -24.9),
            ("polarquant", 64, unrotated(64, 1.0, 0.0), -25.01, -24.9),
            ("trellis:gain=norm", 64, unrotated(64, 1.0, 0.0), -25.01, -24.9),
            ("turboquant:levels=3", 576, unrotated(576, 1.0, 0.0), -29.4, -29.25),
        ] {
            let codec = codec(spec, dim, backend);
            let encode = |exponent: f32| codec.encode_rows(&scaled(&x, exponent.exp2())).unwrap();
            assert!(encode(zero).iter().all(|byte| *byte == 0), "{spec}");
            assert_eq!(head(&encode(smallest)), f16::MIN_POSITIVE_SUBNORMAL.to_f32(), "{spec}");
            assert!(encode(smallest)[2..].iter().any(|byte| *byte != 0), "{spec}");
        }
    }
}

/// An f32 norm could hold smaller values, so here the limit of 2⁻³⁰ itself decides which vectors become zero.
#[test]
fn the_smallest_norms_in_f32() {
    for backend in Backend::available() {
        let codec = codec("octopus:gain=norm,norm=f32", 64, backend);
        for (exponent, zero) in [(-30.001f32, true), (-29.999, false)] {
            let block = codec.encode_rows(&scaled(&unrotated(64, 1.0, 0.0), exponent.exp2())).unwrap();
            assert_eq!(block.iter().all(|byte| *byte == 0), zero, "{exponent}");
        }
    }
}

/// Vectors between one axis and all of them, in small steps.
fn sweep(dim: usize) -> impl Iterator<Item = Vec<f32>> {
    (0..=400).map(move |i| {
        let x = unrotated(dim, 1.0, i as f32 / 400.0 / (dim as f32).sqrt());
        let norm = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        scaled(&x, (1.0 / norm) as f32)
    })
}

/// `gain=unbiased` divides by correlations from 1/8 on.
#[test]
fn unbiased_gains_fall_back_below_an_eighth() {
    for backend in Backend::available() {
        let [plain, unbiased] =
            ["norm", "unbiased"].map(|gain| codec(&format!("turboquant:bits=1,gain={gain}"), 64, backend));
        let (mut below, mut above) = (0.0f64, 1.0f64);
        for x in sweep(64) {
            let decoded = plain.decode_rows(&plain.encode_rows(&x).unwrap()).unwrap();
            let correlation: f64 = x.iter().zip(decoded).map(|(a, b)| f64::from(*a) * f64::from(b)).sum();
            let stored = f64::from(head(&unbiased.encode_rows(&x).unwrap()));
            if (stored - 1.0).abs() < 1e-3 {
                below = below.max(correlation);
            } else {
                above = above.min(correlation);
                assert!((stored * correlation - 1.0).abs() < 1e-3, "{stored} for {correlation}");
            }
        }
        assert!(0.123 < below && below < 0.125_1 && 0.124_9 < above && above < 0.127, "{below} {above}");
    }
}

/// With a sketch, a gain below 1/8 is left out: the residual would be too long for its field.
#[test]
fn sketched_octopus_leaves_out_gains_below_an_eighth() {
    for backend in Backend::available() {
        let build = |spec: &str| codec(&format!("{spec},bdir=3,bnrm=0,norm=f32"), 576, backend);
        let (norm, free) = (build("octopus:gain=norm"), build("octopus:gain=mse"));
        let guarded = build("octopus-qjl:gain=mse");
        let stored = |codec: &dyn Codec, x: &[f32]| {
            f32::from_le_bytes(codec.encode_rows(x).unwrap()[..4].try_into().unwrap())
        };
        let (mut below, mut above) = (0.0f32, 1.0f32);
        for x in sweep(576) {
            let (norm, free) = (stored(&*norm, &x), stored(&*free, &x));
            let gain = free / norm;
            if stored(&*guarded, &x) == norm {
                below = below.max(gain);
            } else {
                above = above.min(gain);
                assert_eq!(stored(&*guarded, &x), free);
            }
        }
        assert!(0.123 < below && below < 0.125 && 0.125 <= above && above < 0.127, "{below} {above}");
    }
}

/// An outlier's norm is above, not at, `med` times the lower median of the page's; none where that is 0.
#[test]
fn outliers_are_above_a_multiple_of_the_lower_median() {
    let two = 2.0f32;
    for backend in Backend::available() {
        for (norms, outliers) in [
            ([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, two.next_down()], 0),
            ([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, two], 0),
            ([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, two.next_up()], 1),
            ([3.0, 1.0, 3.0, 1.0, 3.0, 1.0, 3.0, 1.0], 4),
            ([3.0, 1.0, 3.0, 1.0, 3.0, 1.0, 3.0, 3.0], 0),
            ([0.0, 0.0, 0.0, 0.0, 3.0, 3.0, 3.0, 3.0], 0),
            ([0.0, 0.0, 0.0, 1e-9, 3.0, 3.0, 3.0, 3.0], 4),
        ] {
            for spec in ["int:med=2", "hqmq:s=24,med=2"] {
                let codec = codec(spec, 32, backend);
                let x: Vec<f32> = norms.iter().flat_map(|norm| [0.0, -norm, 0.0, 0.0]).collect();
                assert_eq!(
                    codec.encode_rows(&x).unwrap().len(),
                    codec.block_bytes() + 8 * outliers,
                    "{spec} {norms:?}"
                );
            }
        }
    }
}

/// Cheap proofs that no vector of a page is refused: where they do not hold, the page stays as it was.
#[test]
fn a_refused_vector_leaves_the_page_as_it_was() {
    let axis: [f32; 576] = unrotated(576, 1.0, 0.0).try_into().unwrap();
    for backend in Backend::available() {
        for (spec, largest, too_large) in [
            ("turboquant:levels=3", 3300.0, 3400.0),
            ("turboquant:levels=3,gain=norm", 65500.0, 65540.0),
            ("trellis:gain=norm", 65500.0, 65540.0),
            ("int:med=2", 65500.0 * 24.0, 65540.0 * 24.0),
        ] {
            for (scale, fits) in [(largest, true), (too_large, false)] {
                let rows = [[1.0; 576], axis.map(|x| x * scale)];
                let (codec, mut page) = (codec(spec, 576, backend), [0xaa; 8192]);
                let result = codec.encode_page(rows.as_flattened(), &mut page[..codec.page_bytes_max(2)]);
                assert_eq!(
                    result.map(|_| ()),
                    if fits { Ok(()) } else { Err(Error::Overflow) },
                    "{spec} {scale}"
                );
                assert_eq!(page.iter().all(|byte| *byte == 0xaa), !fits, "{spec} {scale}");
            }
        }
    }
}

/// An infinite scale in any row of full blocks of sixteen and behind them is found, with one query and with many.
#[test]
fn infinite_scales_are_found_in_every_row() {
    for backend in Backend::available() {
        for spec in [
            "turboquant",
            "turboquant:bits=2",
            "turboquant:bits=3",
            "turboquant:bits=5",
            "turboquant:bits=8",
            "int",
            "int:bits=8",
            "trellis",
            "trellis:m=3",
            "trellis:m=8",
        ] {
            let (rows, dim) = (37, if spec == "trellis:m=3" { 32 } else { 128 });
            let codec = codec(spec, dim, backend);
            let blocks = codec.encode_rows(&vec![0.5; rows * dim]).unwrap();
            for queries in [1, 3, 8, 33] {
                let mut prepared = vec![0.0; codec.query_len()];
                codec.prepare_query(&vec![1e-9; dim], &mut prepared).unwrap();
                let queries = vec![&prepared[..]; queries];
                let mut scores = vec![0.0; queries.len() * rows];
                for row in 0..rows {
                    for bits in [0x7c00u16, 0xfc00, 0x7e00] {
                        let mut blocks = blocks.clone();
                        blocks[row * codec.block_bytes()..][..2].copy_from_slice(&bits.to_le_bytes());
                        scores.fill(7.0);
                        let found = codec.score(&queries, &blocks, &mut scores);
                        let case = format!("{spec} {} {}", backend.name(), queries.len());
                        assert_eq!(found, Err(Error::Corrupt { block: row }), "{case}");
                        assert!(scores.iter().all(|score| *score == 0.0), "{case}");
                    }
                }
            }
        }
    }
}

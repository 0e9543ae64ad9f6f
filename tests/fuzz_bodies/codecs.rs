//! Codecs: any floats, any bytes, every backend.
//!
//! An input: codec u8, then for each key of the codec a u8 (0: left out, else which of its values), width u8, and the rest is data.

use super::{Input, Kept, choose_spec, choose_width, is_finite, keeps_outliers};
use octaplex::codecs::{Codec, HeadId};
use octaplex::{Backend, CodecSpec, Error};
use std::rc::Rc;

fn build(spec: CodecSpec, width: usize, backend: Backend) -> Option<Rc<dyn Codec>> {
    thread_local!(static CODECS: Kept<(CodecSpec, usize, Backend), Option<Rc<dyn Codec>>> = Kept::new());
    let make = || spec.build_dyn(width, backend, HeadId::default()).ok().map(Rc::from);
    CODECS.with(|codecs| codecs.get((spec, width, backend), make))
}

/// Any floats: an error, or a block that decodes, scores and accumulates to finite numbers, the same as in a page.
pub fn roundtrip(data: &[u8]) {
    let mut input = Input::new(data);
    let Some(spec) = choose_spec(&mut input) else { return };
    let width = choose_width(&mut input);
    let Some(codec) = build(spec, width, Backend::detect()) else { return };
    let rows = input.floats(2 * width);
    let Ok(blocks) = codec.encode_rows(&rows) else {
        // Refused as a page: one of its vectors is refused.
        let one_is = rows.chunks(width).any(|row| codec.encode_rows(row).is_err());
        assert!(one_is || keeps_outliers(spec), "{spec}");
        return;
    };
    if !keeps_outliers(spec) {
        assert_eq!(blocks.len(), 2 * codec.block_bytes());
        let singly: Vec<u8> = rows.chunks(width).flat_map(|row| codec.encode_rows(row).unwrap()).collect();
        assert!(blocks == singly, "{spec} at {width}: a page is not its blocks");
    }
    assert!(is_finite(&rows));
    assert!(is_finite(&codec.decode_rows(&blocks).unwrap()), "{spec} at {width}");
    assert!(is_finite(&codec.attend_rows(&[0.5, -4_294_967_296.0], &blocks).unwrap()), "{spec} at {width}");
    if let Ok(scores) = codec.score_rows(&rows, &blocks) {
        assert!(is_finite(&scores), "{spec} at {width}: {scores:?}");
    }
}

/// Any bytes as blocks, of any length: an error, or finite numbers.
pub fn decode(data: &[u8]) {
    let mut input = Input::new(data);
    let Some(spec) = choose_spec(&mut input) else { return };
    let width = choose_width(&mut input);
    let Some(codec) = build(spec, width, Backend::detect()) else { return };
    let query: Vec<f32> = (0..width).map(|i| (i * 37 % 64) as f32 - 31.5).collect();
    // Whole blocks of it as well: the first bytes, with the last ones over and over.
    let blocks = input.rest();
    let mut whole = blocks.to_vec();
    whole.resize(3 * codec.block_bytes(), blocks.last().copied().unwrap_or(0));
    for blocks in [blocks, &whole] {
        read(&*codec, spec, blocks, &query);
    }
}

fn read(codec: &dyn Codec, spec: CodecSpec, blocks: &[u8], query: &[f32]) {
    let (width, at) = (codec.dim(), || format!("{spec} at {}", codec.dim()));
    match codec.decode_rows(blocks) {
        Ok(rows) => {
            let count = rows.len() / width;
            assert!(count == blocks.len() / codec.block_bytes() || keeps_outliers(spec), "{}", at());
            assert!(is_finite(&rows), "{}", at());
            assert!(is_finite(&codec.score_rows(query, blocks).unwrap()), "{}", at());
            assert!(is_finite(&codec.attend_rows(&vec![1.0; count], blocks).unwrap()), "{}", at());
        }
        Err(error) => {
            let count = blocks.len() / codec.block_bytes();
            let wrong_length = !blocks.len().is_multiple_of(codec.block_bytes());
            let is_length = matches!(error, Error::Length { .. });
            assert!(wrong_length == is_length || keeps_outliers(spec), "{}: {error}", at());
            assert_eq!(codec.score_rows(query, blocks), Err(error), "{}", at());
            if !is_length && !keeps_outliers(spec) {
                assert_eq!(codec.attend_rows(&vec![1.0; count], blocks), Err(error), "{}", at());
            }
        }
    }
}

/// The results of a codec for rows and bytes, as bits.
#[derive(PartialEq, Debug)]
struct Said {
    encoded: Result<Vec<u8>, Error>,
    decoded: Result<Vec<u32>, Error>,
    scores: Result<Vec<u32>, Error>,
    sums: Result<Vec<u32>, Error>,
}

/// Any floats and bytes: every backend is bit-exact to scalar code.
pub fn backends(data: &[u8]) {
    let mut input = Input::new(data);
    let Some(spec) = choose_spec(&mut input) else { return };
    let width = choose_width(&mut input);
    let Some(scalar) = build(spec, width, Backend::SCALAR) else { return };
    let rows = input.floats(width);
    let encoded = scalar.encode_rows(&rows);
    let mut blocks = encoded.clone().unwrap_or_default();
    blocks.extend(input.bytes(2 * scalar.block_bytes()));
    let weights = input.finite_floats(3 * (blocks.len() / scalar.block_bytes()));
    let queries = input.finite_floats(3 * width);
    let bits = |result: Result<Vec<f32>, Error>| result.map(|x| x.iter().map(|x| x.to_bits()).collect());
    let ask = |codec: &dyn Codec, encoded| Said {
        encoded,
        decoded: bits(codec.decode_rows(&blocks)),
        scores: bits(codec.score_rows(&queries, &blocks)),
        sums: bits(codec.attend_rows(&weights, &blocks)),
    };
    let expected = ask(&*scalar, encoded);
    for backend in Backend::available().filter(|backend| *backend != Backend::SCALAR) {
        let Some(codec) = build(spec, width, backend) else { panic!("{spec}: not on {}", backend.name()) };
        let said = ask(&*codec, codec.encode_rows(&rows));
        assert_eq!(said, expected, "{spec} at {width}, {}", backend.name());
    }
}

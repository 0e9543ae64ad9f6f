//! The bodies of the fuzz targets. `fuzz/` runs them on what libFuzzer finds, `tests/fuzz_replay.rs` on the committed
//! corpus. Codecs join by themselves: the first bytes of an input choose one of all codecs and its keys.
//!
//! An input: codec u8, then for each key of the codec a u8 (0: left out, else which of its values), width u8, and the
//! rest is data. Data runs out into zeros.
#![allow(dead_code, unreachable_pub)] // each binary takes what it needs
#![allow(clippy::unwrap_used, clippy::panic)] // tests fail by panicking

use octaplex::{Backend, Codec, CodecSpec, Error, Key, Stream, codebook::WIDTHS};

/// Data from the fuzzer.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().map_or((0, &[][..]), |(first, rest)| (*first, rest));
        self.0 = rest;
        first
    }

    fn pick<T: Clone>(&mut self, items: &[T]) -> T {
        items[usize::from(self.byte()) % items.len()].clone()
    }

    /// Half of them any f32, half of them of a size that codecs take.
    fn float(&mut self) -> f32 {
        let bits = u32::from_le_bytes([self.byte(), self.byte(), self.byte(), self.byte()]);
        if bits & 1 == 0 { f32::from_bits(bits) } else { (bits as i32 >> 1) as f32 / 65536.0 }
    }

    fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.float()).collect()
    }

    fn finite_floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.float()).map(|x| if x.abs() < 1000.0 { x } else { 1.0 }).collect()
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.byte()).collect()
    }
}

fn values(key: &Key) -> Vec<String> {
    match key.values {
        "0..2^64" => ["0", "1", "18446744073709551615"].map(str::to_owned).into(),
        range if range.contains("..=") => {
            let (low, high) = range.split_once("..=").unwrap();
            let (low, high): (u64, u64) = (low.parse().unwrap(), high.parse().unwrap());
            // Not all of a thousand: large ones take long.
            (low..=high.min(low + 255)).map(|x| x.to_string()).collect()
        }
        list => list.split(", ").map(str::to_owned).collect(),
    }
}

/// The spec and the width that the input asks for; `None` where they exclude each other. Dense rotations are left out:
/// building one takes longer than all the rest.
fn choose(input: &mut Input) -> Option<(CodecSpec, usize)> {
    let codec = input.pick(CodecSpec::all());
    let mut keys = Vec::new();
    for key in codec.keys {
        let (values, choice) = (values(key), usize::from(input.byte()));
        if choice > 0 && !["haar", "gauss"].contains(&&*values[choice % values.len()]) {
            keys.push(format!("{}={}", key.name, values[choice % values.len()]));
        }
    }
    let width = input.pick(&WIDTHS);
    let separator = if keys.is_empty() { "" } else { ":" };
    let text = format!("{}{separator}{}", codec.name, keys.join(","));
    match text.parse::<CodecSpec>() {
        Ok(spec) => {
            assert_eq!(spec.to_string().parse(), Ok(spec));
            Some((spec, width))
        }
        Err(Error::Conflict { .. }) => None,
        Err(error) => panic!("{text}: {error}"),
    }
}

fn build(spec: CodecSpec, width: usize, backend: Backend) -> Option<Box<dyn Codec>> {
    spec.build_dyn(width, backend, Stream::default()).ok()
}

/// Whether the length of a page depends on its data.
fn keeps_outliers(spec: CodecSpec) -> bool {
    spec.to_string().contains("med=")
}

fn is_finite(x: &[f32]) -> bool {
    x.iter().all(|x| x.is_finite())
}

/// Any floats: an error, or a block that decodes, scores and accumulates to finite numbers, the same as in a page.
pub fn roundtrip(data: &[u8]) {
    let mut input = Input(data);
    let Some((spec, width)) = choose(&mut input) else { return };
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
    let mut input = Input(data);
    let Some((spec, width)) = choose(&mut input) else { return };
    let Some(codec) = build(spec, width, Backend::detect()) else { return };
    let query = input.finite_floats(width);
    let blocks = input.0;
    match codec.decode_rows(blocks) {
        Ok(rows) => {
            let count = rows.len() / width;
            assert!(count == blocks.len() / codec.block_bytes() || keeps_outliers(spec), "{spec} at {width}");
            assert!(is_finite(&rows), "{spec} at {width}");
            assert!(is_finite(&codec.score_rows(&query, blocks).unwrap()), "{spec} at {width}");
            assert!(is_finite(&codec.attend_rows(&vec![1.0; count], blocks).unwrap()), "{spec} at {width}");
        }
        Err(error) => {
            let count = blocks.len() / codec.block_bytes();
            let wrong_length = !blocks.len().is_multiple_of(codec.block_bytes());
            let is_length = matches!(error, Error::Length { .. });
            assert!(wrong_length == is_length || keeps_outliers(spec), "{spec} at {width}: {error}");
            assert_eq!(codec.score_rows(&query, blocks), Err(error), "{spec} at {width}");
            if !is_length && !keeps_outliers(spec) {
                assert_eq!(codec.attend_rows(&vec![1.0; count], blocks), Err(error), "{spec} at {width}");
            }
        }
    }
    // The same, whole blocks of it.
    let rest = input.bytes(3 * codec.block_bytes());
    if let Ok(rows) = codec.decode_rows(&rest) {
        assert!(is_finite(&rows), "{spec} at {width}");
        assert!(is_finite(&codec.score_rows(&query, &rest).unwrap()), "{spec} at {width}");
    }
}

fn bits(result: Result<Vec<f32>, Error>) -> Result<Vec<u32>, Error> {
    result.map(|values| values.iter().map(|x| x.to_bits()).collect())
}

/// Any floats and bytes: every backend says what scalar says, to the bit.
pub fn backends(data: &[u8]) {
    let mut input = Input(data);
    let Some((spec, width)) = choose(&mut input) else { return };
    let Some(scalar) = build(spec, width, Backend::SCALAR) else { return };
    let rows = input.floats(width);
    let queries = input.finite_floats(3 * width);
    let mut blocks = scalar.encode_rows(&rows).unwrap_or_default();
    blocks.extend(input.bytes(2 * scalar.block_bytes()));
    let weights = input.finite_floats(3 * (blocks.len() / scalar.block_bytes()));
    for backend in Backend::available() {
        let Some(codec) = build(spec, width, backend) else { panic!("{spec}: not on {}", backend.name()) };
        let at = format!("{spec} at {width}, {}", backend.name());
        assert_eq!(codec.encode_rows(&rows), scalar.encode_rows(&rows), "{at}: encode");
        assert_eq!(bits(codec.decode_rows(&blocks)), bits(scalar.decode_rows(&blocks)), "{at}: decode");
        assert_eq!(
            bits(codec.score_rows(&queries, &blocks)),
            bits(scalar.score_rows(&queries, &blocks)),
            "{at}: score"
        );
        assert_eq!(
            bits(codec.attend_rows(&weights, &blocks)),
            bits(scalar.attend_rows(&weights, &blocks)),
            "{at}: attend"
        );
    }
}

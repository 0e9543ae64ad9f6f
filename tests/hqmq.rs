//! HQMQ: stored bytes, exactness of the search, distortion, outliers, and bytes that lie.
#![allow(clippy::unwrap_used)]

use octaplex::{AnyCodec, Backend, Codec, CodecSpec, Error, Hqmq, HqmqSpec, Stream};
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

fn spec(text: &str) -> HqmqSpec {
    match text.parse().unwrap() {
        CodecSpec::Hqmq(spec) => spec,
        other => panic!("{other} is another codec"),
    }
}

fn codec<const D: usize>(text: &str) -> Hqmq<D> {
    Hqmq::build(spec(text), Backend::detect(), Stream::default()).unwrap()
}

/// Sums of twelve uniform numbers are Gaussian enough for a distortion.
struct Source(ChaCha8Rng);

impl Source {
    fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    fn uniform(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / 9_007_199_254_740_992.0
    }

    fn gaussian(&mut self) -> f32 {
        let (u, v) = (1.0 - self.uniform(), self.uniform());
        ((-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()) as f32
    }

    fn vector<const D: usize>(&mut self) -> [f32; D] {
        std::array::from_fn(|_| self.gaussian())
    }
}

fn distortion<const D: usize>(codec: &Hqmq<D>, vectors: usize) -> f64 {
    let mut source = Source::new(7);
    let mut block = vec![0; codec.block_bytes()];
    let (mut error, mut energy) = (0.0, 0.0);
    for _ in 0..vectors {
        let x: [f32; D] = source.vector();
        let mut decoded = [0.0; D];
        codec.encode(&x, &mut block).unwrap();
        codec.decode(&block, &mut decoded).unwrap();
        for (x, y) in x.iter().zip(decoded) {
            error += f64::from(x - y).powi(2);
            energy += f64::from(*x).powi(2);
        }
    }
    error / energy
}

#[test]
fn stored_bytes() {
    let table = [
        ("hqmq:s=24,r=3", [27, 39, 51]),
        ("hqmq", [33, 48, 63]),
        ("hqmq:s=192", [35, 51, 67]),
        ("hqmq:s=192,r=6", [39, 57, 75]),
    ];
    for (text, bytes) in table {
        assert_eq!([64, 96, 128].map(|dim| spec(text).block_bytes(dim)), bytes, "{text}");
    }
}

/// codecs.md's table: mean ± deviation over sets.
#[test]
fn distortion_of_random_sets() {
    for (text, mean, deviation) in [
        ("s=24,r=3", 0.0418, 0.0028),
        ("s=96,r=4", 0.0154, 0.0005),
        ("s=192,r=4", 0.0101, 0.0002),
        ("s=192,r=6", 0.0091, 0.0002),
    ] {
        let of_seed = |seed| distortion(&codec::<128>(&format!("hqmq:{text},seed={seed}")), 400);
        let all: Vec<f64> = (0..10).map(of_seed).collect();
        let measured = all.iter().sum::<f64>() / 10.0;
        println!("{text}: {measured:.5} {all:.4?}");
        assert!((measured - mean).abs() < 3.0 * deviation, "{text}: {measured}");
    }
    for (text, random) in
        [("s=24,r=3", 0.0418), ("s=96,r=4", 0.0154), ("s=192,r=4", 0.0101), ("s=192,r=6", 0.0091)]
    {
        let d = distortion(&codec::<128>(&format!("hqmq:{text},secondary=optimised")), 2000);
        println!("{text} optimised: {d:.5}, {:.1}% less", (1.0 - d / random) * 100.0);
    }
}

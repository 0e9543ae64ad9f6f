//! Times every kernel on every backend of this CPU. Scores and sums are also compared with the baseline of an uncompressed
//! cache, an f16 dot product with fused multiply-adds.
//!
//! `cargo bench --bench kernels -- score` runs some of them, `-- --quick` gives a first
//! impression. Times are per call. Scores and sums take 4,096 rows of 128 coordinates, so 4.1 µs is
//! one nanosecond a row.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use octaplex_arch::{Backend, Float, IntQuery, Packing, Rows};
use std::hint::black_box;

const DIM: usize = 128;
const ROWS: usize = 4096;

/// Returns inputs that are the same on every machine, without a random generator.
fn paint(count: usize) -> impl Iterator<Item = u64> {
    (1..=count as u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20)
}

fn floats(count: usize) -> Vec<f32> {
    paint(count).map(|x| (x % 2001) as f32 / 500.0 - 2.0).collect()
}

/// Returns rows of any codes, with scales between 1/8 and 2.
fn rows_of(packing: Packing) -> (Vec<u8>, usize) {
    let stride = 2 + packing.bytes(DIM);
    let mut bytes: Vec<u8> = paint(ROWS * stride).map(|x| x as u8).collect();
    for row in bytes.chunks_exact_mut(stride) {
        row[1] = 0x30 | (row[1] & 0x0f);
    }
    (bytes, stride)
}

fn centroids(packing: Packing) -> Vec<i16> {
    let (levels, limit) = (packing.levels() as i16, if packing.levels() > 16 { 2047 } else { 127 });
    (0..levels).map(|i| (i32::from(2 * i - levels + 1) * limit / i32::from(levels)) as i16).collect()
}

fn packings() -> impl Iterator<Item = Packing> {
    [2, 4, 8, 16, 32, 64, 128, 256, 3, 5, 6, 10, 12].into_iter().filter_map(Packing::for_levels)
}

fn codes(c: &mut Criterion) {
    let query = floats(DIM);
    let mut halves = vec![0; ROWS * DIM * 2];
    Backend::SCALAR.encode_floats(Float::F16, &floats(ROWS * DIM), &mut halves);
    for kernel in ["score_codes", "accumulate_codes"] {
        let mut group = c.benchmark_group(kernel);
        group.throughput(Throughput::Elements(ROWS as u64));
        for backend in Backend::available() {
            let mut scores = vec![0.0; ROWS];
            group.bench_function(BenchmarkId::new(backend.name(), "baseline: f16 dot"), |b| {
                b.iter(|| backend.f16_dot_fma(&query, black_box(&halves), &mut scores));
            });
            for packing in packings() {
                let (bytes, stride) = rows_of(packing);
                let rows = Rows { bytes: &bytes, stride, len: stride, dim: DIM, scales: None, ahead: &[] };
                let centroids = centroids(packing);
                let limit = if packing.levels() > 16 { 1023 } else { 127 };
                let mut values = [0; DIM];
                let scale = backend.quantize_query(&query, limit, &mut values);
                for queries in [1, 8] {
                    let name = format!("{} levels, {queries} queries", packing.levels());
                    let id = BenchmarkId::new(backend.name(), name);
                    if kernel == "score_codes" {
                        let queries = vec![IntQuery { values: &values, scale }; queries];
                        let mut scores = vec![0.0; ROWS * queries.len()];
                        group.bench_function(id, |b| {
                            b.iter(|| {
                                backend.score_codes(
                                    packing,
                                    black_box(&[rows]),
                                    &centroids,
                                    1.0,
                                    &queries,
                                    &mut scores,
                                )
                            });
                        });
                    } else {
                        let weights: Vec<f32> = floats(ROWS * queries).iter().map(|x| x.abs()).collect();
                        let mut acc = vec![0.0; DIM * queries];
                        group.bench_function(id, |b| {
                            b.iter(|| {
                                backend.accumulate_codes(
                                    packing,
                                    black_box(&[rows]),
                                    &centroids,
                                    1.0,
                                    &weights,
                                    &mut acc,
                                )
                            });
                        });
                    }
                }
            }
        }
    }
}

fn vectors(c: &mut Criterion) {
    let mut group = c.benchmark_group("vector");
    let (x, y) = (floats(DIM), floats(DIM).into_iter().rev().collect::<Vec<_>>());
    for backend in Backend::available() {
        let id = |name: String| BenchmarkId::new(backend.name(), name);
        group.bench_function(id("dot".into()), |b| b.iter(|| backend.dot(black_box(&x), &y)));
        group.bench_function(id("max_abs".into()), |b| b.iter(|| backend.max_abs(black_box(&x))));
        group.bench_function(id("min_max".into()), |b| b.iter(|| backend.min_max(black_box(&x))));
        let mut ints = [0; DIM];
        group.bench_function(id("quantize_query".into()), |b| {
            b.iter(|| backend.quantize_query(black_box(&x), 127, &mut ints));
        });
        for dim in [64, 80, 96, 112, 128, 160, 192, 256] {
            let (mut x, signs) = (floats(dim), vec![1 << 31; dim]);
            let scale = 1.0 / (dim as f32).sqrt();
            group.bench_function(id(format!("rotate {dim}")), |b| {
                b.iter(|| backend.rotate(black_box(&mut x), &signs, scale));
            });
        }
        let matrix = floats(DIM * DIM);
        let mut product = vec![0.0; DIM];
        group.bench_function(id("multiply_columns".into()), |b| {
            b.iter(|| backend.multiply_columns(&matrix, black_box(&x), &mut product));
        });
        for packing in packings() {
            let levels = packing.levels();
            let thresholds: Vec<f32> = (1..levels).map(|i| 4.0 * i as f32 / levels as f32 - 2.0).collect();
            let (centroids, mut codes) = (centroids(packing), [0; DIM]);
            let mut packed = vec![0; packing.bytes(DIM)];
            group.bench_function(id(format!("quantize {levels}")), |b| {
                b.iter(|| backend.quantize(black_box(&x), 1.0, &thresholds, &mut codes));
            });
            group.bench_function(id(format!("lookup {levels}")), |b| {
                b.iter(|| backend.lookup(black_box(&codes), &centroids, 0.1, &mut product));
            });
            group.bench_function(id(format!("pack {levels}")), |b| {
                b.iter(|| backend.pack(packing, black_box(&codes), &mut packed));
            });
            group.bench_function(id(format!("unpack {levels}")), |b| {
                b.iter(|| backend.unpack(packing, black_box(&packed), &mut codes));
            });
        }
    }
}

fn rows(c: &mut Criterion) {
    let mut group = c.benchmark_group("rows");
    group.throughput(Throughput::Elements(ROWS as u64));
    let query = floats(DIM);
    for backend in Backend::available() {
        for queries in [1, 8] {
            let id = |name: String| BenchmarkId::new(backend.name(), format!("{name}, {queries} queries"));
            let (mut scores, mut acc) = (vec![0.0; ROWS * queries], vec![0.0; DIM * queries]);
            let (queries, weights) = (vec![&query[..]; queries], vec![0.25; ROWS * queries]);
            for format in [Float::F16, Float::Bf16] {
                let mut bytes = vec![0; ROWS * DIM * format.bytes()];
                backend.encode_floats(format, &floats(ROWS * DIM), &mut bytes);
                group.bench_function(id(format!("score_floats {format:?}")), |b| {
                    b.iter(|| backend.score_floats(format, DIM, black_box(&bytes), &queries, &mut scores));
                });
                group.bench_function(id(format!("accumulate_floats {format:?}")), |b| {
                    b.iter(|| backend.accumulate_floats(format, DIM, black_box(&bytes), &weights, &mut acc));
                });
            }
        }
    }
}

criterion_group!(kernels, codes, vectors, rows);
criterion_main!(kernels);

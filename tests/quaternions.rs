//! The optimised sets of unit quaternions: where they come from, and that they are as good as they should be.
//!
//! `OCTAPLEX_BLESS=1 cargo test --release --test suite quaternions -- --ignored` trains them (some minutes) and rewrites
//! `src/codebook/quaternions/tables.rs`; without the variable, it proves that the committed tables are what training
//! gives. Only f64 additions, multiplications, divisions and square roots, all of them exact to half a unit in the last
//! place on every machine: the same tables everywhere.
//!
//! A set {q} stands for the 24·S products unit·q. The sphere's uniform density has the same symmetry, so Lloyd's
//! algorithm runs on the set alone: a sample u belongs to the product of the largest inner product, and each q moves to
//! the normalised sum of unit*·u over its samples. A q without samples moves to the sample that is served worst. From
//! ten random starts, 100 rounds on an eighth of the samples; the three best go on for 60 rounds on half of them and 40
//! on all; the best of these, on fresh samples, is taken. At the end each q becomes the product unit·q whose nearest unit is 1,
//! and the set is sorted.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)] // tests fail by panicking

use std::fmt::Write;

type Quaternion = [f64; 4];

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn in_disc(&mut self) -> (f64, f64, f64) {
        loop {
            let mut coordinate = || (self.next() >> 11) as f64 / 4_503_599_627_370_496.0 - 1.0;
            let (a, b) = (coordinate(), coordinate());
            let square = a * a + b * b;
            if 0.0 < square && square < 1.0 {
                return (a, b, square);
            }
        }
    }

    /// Uniform on the sphere, by Marsaglia.
    fn quaternion(&mut self) -> Quaternion {
        let ((a, b, low), (c, d, high)) = (self.in_disc(), self.in_disc());
        let f = ((1.0 - low) / high).sqrt();
        [a, b, c * f, d * f]
    }
}

fn product([a, b, c, d]: Quaternion, [w, x, y, z]: Quaternion) -> Quaternion {
    [
        a * w - b * x - c * y - d * z,
        a * x + b * w + c * z - d * y,
        a * y + c * w + d * x - b * z,
        a * z + d * w + b * y - c * x,
    ]
}

fn conjugate([w, x, y, z]: Quaternion) -> Quaternion {
    [w, -x, -y, -z]
}

/// The Hurwitz unit nearest to `y`.
fn nearest_unit(y: Quaternion) -> Quaternion {
    let a = y.map(f64::abs);
    let largest = (0..4).max_by(|i, j| a[*i].total_cmp(&a[*j])).unwrap();
    if 2.0 * a[largest] >= a.iter().sum() {
        let mut unit = [0.0; 4];
        unit[largest] = 1f64.copysign(y[largest]);
        unit
    } else {
        y.map(|c| 0.5f64.copysign(c))
    }
}

/// Components of a set, for loops over its members.
struct Set([Vec<f64>; 4]);

impl Set {
    fn new(members: &[Quaternion]) -> Self {
        Self([0, 1, 2, 3].map(|c| members.iter().map(|q| q[c]).collect()))
    }

    /// (inner product, member) of the best product for `u`; `products` has space for every member.
    fn best(&self, [w, x, y, z]: Quaternion, products: &mut [f64]) -> (f64, usize) {
        let [qa, qb, qc, qd] = &self.0;
        for ((product, (a, b)), (c, d)) in products.iter_mut().zip(qa.iter().zip(qb)).zip(qc.iter().zip(qd)) {
            let p = (w * a + x * b + y * c + z * d).abs();
            let q = (x * a - w * b + z * c - y * d).abs();
            let r = (y * a - w * c + x * d - z * b).abs();
            let s = (z * a - w * d + y * b - x * c).abs();
            let max = |a: f64, b: f64| if a > b { a } else { b };
            *product = max(max(max(p, q), max(r, s)), (p + q + r + s) * 0.5);
        }
        let mut best = (products[0], 0);
        for (s, product) in products.iter().enumerate() {
            if *product > best.0 {
                best = (*product, s);
            }
        }
        best
    }
}

/// The mean of the best inner product: with ideal radii, the distortion is 1 minus its mean square.
fn quality(members: &[Quaternion], samples: &[Quaternion]) -> f64 {
    let (set, mut products) = (Set::new(members), vec![0.0; members.len()]);
    samples.iter().map(|u| set.best(*u, &mut products).0).sum::<f64>() / samples.len() as f64
}

fn lloyd(members: &mut [Quaternion], samples: &[Quaternion], rounds: usize) {
    let mut products = vec![0.0; members.len()];
    for _ in 0..rounds {
        let set = Set::new(members);
        let mut sums = vec![[0.0; 4]; members.len()];
        let mut worst = (2.0, [1.0, 0.0, 0.0, 0.0]);
        for u in samples {
            let (value, s) = set.best(*u, &mut products);
            let unit = nearest_unit(product(*u, conjugate(members[s])));
            for (sum, c) in sums[s].iter_mut().zip(product(conjugate(unit), *u)) {
                *sum += c;
            }
            if value < worst.0 {
                worst = (value, *u);
            }
        }
        for (member, sum) in members.iter_mut().zip(sums) {
            let norm = sum.iter().map(|c| c * c).sum::<f64>().sqrt();
            *member = if norm > 0.0 { sum.map(|c| c / norm) } else { worst.1 };
        }
    }
}

const SIZES: [usize; 4] = [24, 48, 96, 192];

fn train(size: usize) -> Vec<[f32; 4]> {
    let mut random = Random(size as u64);
    let samples: Vec<Quaternion> = (0..800 * size).map(|_| random.quaternion()).collect();
    let fresh: Vec<Quaternion> = (0..400 * size).map(|_| random.quaternion()).collect();
    let start = |_| {
        let mut members: Vec<Quaternion> = (0..size).map(|_| random.quaternion()).collect();
        lloyd(&mut members, &samples[..samples.len() / 8], 100);
        (quality(&members, &fresh), members)
    };
    let mut starts: Vec<_> = (0..10).map(start).collect();
    starts.sort_by(|a, b| b.0.total_cmp(&a.0));
    let finish = |(_, mut members): (f64, Vec<Quaternion>)| {
        lloyd(&mut members, &samples[..samples.len() / 2], 60);
        lloyd(&mut members, &samples, 40);
        (quality(&members, &fresh), members)
    };
    let finished = starts.into_iter().take(3).map(finish);
    let (quality, mut members) = finished.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
    println!("{size}: mean inner product {quality:.7}");
    for member in &mut members {
        *member = product(conjugate(nearest_unit(*member)), *member);
    }
    members.sort_by(|a, b| b.partial_cmp(a).unwrap());
    members.iter().map(|q| q.map(|c| c as f32)).collect()
}

fn text(sets: &[Vec<[f32; 4]>]) -> String {
    let mut text = String::from(
        "//! Generated by `OCTAPLEX_BLESS=1 cargo test --release --test suite quaternions -- --ignored`; do not edit.\n\n\
         use super::Table;\n\n#[rustfmt::skip]\npub(super) static TABLES: [Table; 4] = [\n",
    );
    for set in sets {
        writeln!(text, "Table {{ // {} members\nmembers: &[", set.len()).unwrap();
        for q in set {
            writeln!(text, "{q:?},").unwrap();
        }
        text.push_str("],\nints: &[\n");
        for eight in set.chunks(8) {
            for q in eight {
                write!(text, "{:?},", q.map(|c| (127.0 * c).round_ties_even() as i8)).unwrap();
            }
            text.push('\n');
        }
        text.push_str("] },\n");
    }
    text + "];\n"
}

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/codebook/quaternions/tables.rs");

#[test]
#[ignore = "trains for minutes in a release build"]
fn tables_are_what_training_gives() {
    let sets: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = SIZES.map(|size| scope.spawn(move || train(size))).into();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let text = text(&sets);
    if std::env::var_os("OCTAPLEX_BLESS").is_some_and(|bless| bless == "1") {
        std::fs::write(PATH, &text).unwrap();
    }
    assert!(std::fs::read_to_string(PATH).unwrap() == text, "the committed tables are other ones");
}

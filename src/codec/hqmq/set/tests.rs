//! Compares the index with trying every member: codes must be equal, ties and roundings included.

use super::{HqmqSpec, Secondary, Set};
use crate::backend::Kernels as Backend;
use crate::codebook::quaternions;
use crate::codec::hqmq::ChunkPacking;
use crate::random::HeadId;
use crate::random::Purpose;
use alloc::{format, vec, vec::Vec};
use octaplex_arch::quaternion::{QuaternionSet, RadiusSteps, UNITS};
use rand_core::{Rng, SeedableRng};

/// Every chunk gets a radius above 0, so that its direction is coded.
const STEPS: RadiusSteps = RadiusSteps { factor: 1e30, limit: 255 };

struct Directions<'a> {
    random: chacha20::ChaCha8Rng,
    members: &'a [[f32; 4]],
}

impl Directions<'_> {
    fn below(&mut self, end: usize) -> usize {
        (self.random.next_u32() as usize) % end
    }

    fn float(&mut self) -> f32 {
        (self.random.next_u32() >> 8) as f32 / 8_388_608.0 - 1.0
    }

    fn codeword(&mut self) -> [f32; 4] {
        let (unit, member) = (self.below(24), self.below(self.members.len()));
        times(UNITS[unit], self.members[member])
    }

    /// Uniform directions, and directions near the boundaries between codewords, between units, and
    /// between cells of the grid.
    fn next(&mut self) -> [f32; 4] {
        let mut u = [self.float(), self.float(), self.float(), self.float()];
        let (c, other) = (self.below(4), self.below(4));
        match self.below(10) {
            0 => u = self.codeword(),
            1 => {
                // Two neighbouring codewords. Close ones are good enough.
                let a = self.codeword();
                let near = |b: &[f32; 4]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>() > 0.8;
                let b = (0..200).map(|_| self.codeword()).find(near).unwrap_or(a);
                u = core::array::from_fn(|i| a[i] + b[i]);
            }
            2 => u[c] = u[other],
            3 => u[c] = -u[other],
            4 => u[0] = u[1].abs() + u[2].abs() + u[3].abs(),
            5 => {
                // On the grid's planes, around a random unit.
                let mut g = [1.0, 0.0, 0.0, 0.0];
                for g in &mut g[1..] {
                    *g = self.below(17) as f32 / 8.0 - 1.0;
                }
                u = times(UNITS[self.below(24)], g);
            }
            6 => u[c] = 0.0,
            _ => {}
        }
        // Move one component by a few units in the last place, and scale the chunk.
        if u[c] != 0.0 && self.below(2) == 0 {
            u[c] = f32::from_bits(u[c].to_bits().wrapping_add_signed(self.below(5) as i32 - 2));
        }
        let scale = [1.0, 1e-6, 3e4, 0.37][self.below(4)];
        u.map(|c| c * scale)
    }
}

fn times(unit: [f32; 4], q: [f32; 4]) -> [f32; 4] {
    let ([a, b, c, d], [w, x, y, z]) = (unit, q);
    [
        a * w - b * x - c * y - d * z,
        a * x + b * w + c * z - d * y,
        a * y + c * w + d * x - b * z,
        a * z + d * w + b * y - c * x,
    ]
}

/// Compares the codes of directions through the index on `backend` with those without it on
/// `reference`.
fn compare(set: &Set, count: usize, seed: u64, backend: Backend, reference: Backend) {
    let view = set.view();
    assert!(view.index.is_some());
    let exhaustive = QuaternionSet { index: None, ..view };
    let random = chacha20::ChaCha8Rng::seed_from_u64(seed);
    let mut directions = Directions { random, members: view.members };
    for _ in 0..count.div_ceil(64) {
        let x: Vec<f32> = (0..64).flat_map(|_| directions.next()).collect();
        let mut norms = vec![0.0; 64];
        Backend::SCALAR.chunk_norms(&x, &mut norms);
        let code = |backend: Backend, set: &QuaternionSet| {
            let (mut codes, mut radii) = (vec![0; 64], vec![0; 64]);
            backend.encode_quaternions(set, &x, &norms, STEPS, &mut codes, &mut radii);
            codes
        };
        let (expected, actual) = (code(reference, &exhaustive), code(backend, &view));
        if let Some(i) = (0..64).find(|i| expected[*i] != actual[*i]) {
            let message = format!("{:?}: {} instead of {}", &x[4 * i..][..4], actual[i], expected[i]);
            assert_eq!(expected, actual, "{message}");
        }
    }
}

fn sets() -> impl Iterator<Item = Set> {
    let optimised = [24, 48, 96, 192].map(|members| (members, Secondary::Optimised));
    let random = [16, 24, 33, 48, 96, 192, 255].map(|members| (members, Secondary::Random));
    optimised.into_iter().chain(random).map(|(members, secondary)| {
        let spec =
            HqmqSpec { members, secondary, packing: ChunkPacking::Index, seed: 3, ..Default::default() };
        match Set::new(&spec, HeadId::default()) {
            Ok(set) => set,
            Err(error) => unreachable!("{error}"),
        }
    })
}

#[test]
fn the_index_finds_what_trying_all_finds() {
    for (i, set) in sets().enumerate() {
        for backend in Backend::available() {
            compare(&set, 10_000, i as u64, backend, Backend::SCALAR);
        }
    }
}

/// `OCTAPLEX_BLESS=1 cargo test --lib the_static_indexes` rewrites the files after the sets have
/// changed.
#[test]
fn the_static_indexes_are_what_building_gives() {
    extern crate std;
    for members in [24, 48, 96, 192] {
        let Some(table) = quaternions::optimised(members) else { unreachable!() };
        let (cells, lists) = super::index::tables(table.members);
        let bytes: Vec<u8> = cells.iter().flat_map(|cell| cell.to_le_bytes()).chain(lists).collect();
        let path = format!("{}/src/codebook/quaternions/index_{members}.bin", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("OCTAPLEX_BLESS").is_some_and(|bless| bless == "1") {
            assert!(std::fs::write(&path, &bytes).is_ok(), "{path}");
        }
        assert!(std::fs::read(&path).is_ok_and(|file| file == bytes), "{path} is another index");
    }
}

/// A random set takes less than 64 KiB on the heap, and an optimised one nothing.
#[test]
fn sets_are_small() {
    for set in sets() {
        match set {
            Set::Optimised(_) => assert!(size_of_val(&set) <= 128, "{} bytes", size_of_val(&set)),
            Set::Random(random) => {
                let bytes = size_of_val(&*random) + random.index.as_ref().map_or(0, |index| index.bytes());
                assert!(bytes < 40 * 1024, "{bytes} bytes for {} members", random.count);
            }
        }
    }
}

/// Eleven million directions: `cargo test --release -- --ignored ten_million`.
#[test]
#[ignore = "seconds in a release build, minutes in others"]
fn eleven_million_directions() {
    for (i, set) in sets().enumerate() {
        compare(&set, 1_000_000, 100 + i as u64, Backend::detect(), Backend::detect());
    }
}

/// Members that coincide, or differ by a unit only: the lowest code wins.
#[test]
fn ties_go_to_the_lowest_code() {
    let mut random = HeadId::default().random(1, Purpose::Quaternions, 0);
    let mut members: Vec<[f32; 4]> = (0..20).map(|_| random.unit_quaternion()).collect();
    for s in 10..20 {
        members[s] = times(UNITS[s], members[s - 10]);
    }
    members.extend_from_within(..);
    let ints = vec![[0; 4]; members.len()];
    let Some(index) = super::index::build(&members) else { unreachable!() };
    let with = QuaternionSet { members: &members, ints: &ints, index: Some(index.index()) };
    let mut directions = Directions { random: chacha20::ChaCha8Rng::seed_from_u64(5), members: &members };
    for _ in 0..2000 {
        let x = directions.next();
        let mut norm = [0.0];
        Backend::SCALAR.chunk_norms(&x, &mut norm);
        let backends = Backend::available().flat_map(|backend| [(backend, None), (backend, with.index)]);
        let mut first = None;
        for (backend, index) in backends {
            let (set, mut code) = (QuaternionSet { index, ..with }, [0]);
            backend.encode_quaternions(&set, &x, &norm, STEPS, &mut code, &mut [0]);
            // Copies of the first twenty members never win.
            assert!(usize::from(code[0]) % 40 < 20, "{x:?}: {code:?}");
            assert_eq!(*first.get_or_insert(code), code, "{x:?}");
        }
    }
}

//! Lookup tables of triplets.

use super::cells::map_cells;
use super::{CodeShape, Rotated, Tables};
use alloc::vec::Vec;
use octaplex_arch::{Search, TripletLayout};

impl Tables {
    /// Creates tables of triplets with this layout and search; `None` if directions are not bytes.
    #[must_use]
    pub fn triplets(layout: &TripletLayout, search: Search, rotated: Rotated) -> Option<Self> {
        let directions = layout.directions;
        let rest = if layout.rest_bits == 0 { 0 } else { 1 << layout.rest_bits };
        let lengths = (directions.len(), layout.radii.len(), layout.rest.len());
        if lengths != (1 << (2 * layout.direction_bits), 1 << layout.radius_bits, rest) {
            return None;
        }
        // The largest coordinate becomes the largest integer of 16 bits.
        let rest = layout.rest.iter().map(|centroid| f32::from(*centroid) * layout.rest_scale * 127.0);
        let radii = layout.radii.iter().map(|radius| radius * 127.0);
        let most = rest.clone().chain(radii.clone()).fold(0.0, |most: f32, x| most.max(x.abs()));
        let scale = 32766.0 / most;
        let mut entries: Vec<u32> =
            directions.iter().map(|direction| u32::from_le_bytes(direction.map(|x| x as u8))).collect();
        entries.extend(layout.radii.iter().map(|radius| (radius * scale * 256.0).round_ties_even() as u32));
        entries.extend(rest.map(|x| (((x * scale).round_ties_even() as i32) << 8) as u32));
        if layout.rest_bits == 0 {
            entries.push(0);
        }
        let shape = CodeShape::Triplets([layout.direction_bits, layout.radius_bits, layout.rest_bits]);
        let search = search_of(layout, search)?;
        Some(Self { entries, search, ..Self::new(shape, [0; 32], 1.0 / (127.0 * scale), rotated) })
    }
}

/// Returns the midpoint of each two neighbours.
fn midpoints(centroids: impl Iterator<Item = f32> + Clone) -> impl Iterator<Item = f32> {
    centroids.clone().zip(centroids.skip(1)).map(|(a, b)| (a + b) * 0.5)
}

/// Returns what the search for triplets of this layout looks up.
fn search_of(layout: &TripletLayout, search: Search) -> Option<Vec<u32>> {
    let (coordinates, bits) = (layout.coordinates, |x: f32| x.to_bits());
    let nearest = matches!(search, Search::Nearest | Search::Neighbours);
    let thresholds: Vec<f32> =
        if nearest { midpoints(coordinates.iter().copied()).collect() } else { coordinates.to_vec() };
    let all = coordinates.len() as u32;
    let (before, behind) = match search {
        Search::Nearest => (0, 0),
        Search::Bracket => (1, 0),
        Search::Neighbours => (1, 1),
        Search::All => (all, all),
    };
    let mut words = alloc::vec![before, behind, (search == Search::Nearest).into()];
    words.extend(map_cells(&thresholds)?.as_flattened());
    words.extend(coordinates.iter().copied().map(bits));
    // Indexed by codes, which a kernel has, instead of ranks.
    let (count, half) = (coordinates.len(), coordinates.len() / 2);
    if count != 1 << layout.direction_bits || layout.lengths.len() != half * half {
        return None;
    }
    let rank = |code: usize| if code < half { half - 1 - code } else { code - half };
    words.extend(
        (0..count * count).map(|at| bits(layout.lengths[rank(at / count) * half + rank(at % count)])),
    );
    // The bytes are not negative here, so a kernel can turn them into floats with bit operations alone.
    words.extend(layout.directions.iter().map(|x| u32::from_le_bytes(x.map(|x| x as u8 ^ 0x80))));
    words.extend(layout.radii.iter().copied().map(bits));
    words.extend(midpoints(layout.radii.iter().copied()).chain([f32::INFINITY]).map(bits));
    if layout.rest.is_empty() {
        words.extend([0, 0]);
    } else {
        let rest = layout.rest.iter().map(|centroid| f32::from(*centroid));
        words.extend(rest.clone().map(|x| bits(x * layout.rest_scale)));
        words.extend(midpoints(rest).map(|x| bits(x * layout.rest_scale)).chain([bits(f32::INFINITY)]));
    }
    Some(words)
}

//! Maps from a value to its code with one look-up.

/// Finds the code of a coordinate of a unit vector with one look-up. The line from the first threshold to
/// the last has 32 cells, with at most one threshold each.
///
/// ```text
/// line     │  │ t │  │ t │  │  │ t │ …       cell = 32 · (y · slope + offset)
/// cell     threshold │ side below it, 16 bits │ side from it on, 16 bits
/// side     code + 256 · (centroid + 128)
/// ```
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cells {
    slope: f32,
    offset: f32,
    cells: [[u32; 2]; 32],
}

impl Cells {
    pub(super) const NONE: Self = Self { slope: 0.0, offset: 0.0, cells: [[0; 2]; 32] };

    /// Returns `None` if two thresholds share a cell. There is one more centroid than thresholds.
    pub(super) fn new(thresholds: &[f32], centroids: &[i16]) -> Option<Self> {
        let (low, high) = (*thresholds.first()?, *thresholds.last()?);
        let slope = 1.0 / (high - low);
        let mut all = Self { slope, offset: -low * slope, cells: [[f32::INFINITY.to_bits(), 0]; 32] };
        let side = |code: usize| code as u32 | ((centroids[code] + 128) as u32) << 8;
        let mut last = None;
        for (number, threshold) in thresholds.iter().enumerate() {
            let cell = all.cell(*threshold);
            let from = last.map_or(0, |last| last + 1);
            if cell < from {
                return None;
            }
            all.cells[from..cell].iter_mut().for_each(|own| own[1] = side(number));
            all.cells[cell] = [threshold.to_bits(), side(number) | side(number + 1) << 16];
            last = Some(cell);
        }
        all.cells[last? + 1..].iter_mut().for_each(|own| own[1] = side(thresholds.len()));
        Some(all)
    }

    /// Returns the cell of a value, as `found_in` of the kernels does.
    fn cell(&self, y: f32) -> usize {
        along(y, self.slope, self.offset) / 8
    }
}

/// Returns which of 256 pieces of a line from 0 to 1 contains a value.
fn along(y: f32, slope: f32, offset: f32) -> usize {
    let along = y.mul_add(slope, offset).clamp(0.0, 1.0);
    (along.mul_add(255.0, 8_388_608.0).to_bits() & 0xFF) as usize
}

/// Cells of a coordinate of a triplet's map, from -1 to 1.
pub(super) const MAP_CELLS: usize = 64;

/// Returns for each cell the threshold in it, and the number of thresholds before it; `None` if two share a
/// cell.
pub(super) fn map_cells(thresholds: &[f32]) -> Option<[[u32; MAP_CELLS]; 2]> {
    let mut cells = [[f32::INFINITY.to_bits(); MAP_CELLS], [0; MAP_CELLS]];
    let mut next = 0;
    for (number, threshold) in thresholds.iter().enumerate() {
        let cell = along(*threshold, 0.5, 0.5) / (256 / MAP_CELLS);
        if cell < next {
            return None;
        }
        cells[1][next..=cell].fill(number as u32);
        cells[0][cell] = threshold.to_bits();
        next = cell + 1;
    }
    cells[1][next..].fill(thresholds.len() as u32);
    Some(cells)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    /// Every value gets as code the number of thresholds that do not exceed it: at thresholds, near them,
    /// and everywhere.
    #[test]
    fn a_cell_has_what_thresholds_say() {
        let centroids: [i16; 16] = [-127, -96, -76, -59, -45, -31, -18, -6, 6, 18, 31, 45, 59, 76, 96, 127];
        for unit in [1.0e-3, 1.9e-3, 3.3e-3] {
            let thresholds: Vec<f32> =
                centroids.windows(2).map(|c| f32::from(c[0] + c[1]) * 0.5 * unit).collect();
            let cells = Cells::new(&thresholds, &centroids).expect("far enough apart");
            let check = |y: f32| {
                let [threshold, sides] = cells.cells[cells.cell(y)];
                let side = if y >= f32::from_bits(threshold) { sides >> 16 } else { sides };
                let code = thresholds.iter().filter(|&&t| t <= y).count();
                assert_eq!(side & 0xFF, code as u32, "{y:e}");
                assert_eq!((side >> 8 & 0xFF) as i16 - 128, centroids[code], "{y:e}");
            };
            for t in &thresholds {
                [t.next_down(), *t, t.next_up()].into_iter().for_each(check);
            }
            (-20_000..20_000).for_each(|n| check(n as f32 * 1e-4 * unit * 127.0));
            [f32::MIN, -1.0, -0.0, 0.0, 1.0, f32::MAX].into_iter().for_each(check);
        }
        assert!(Cells::new(&[-1.0, 0.0, 0.01, 1.0], &[-3, -2, 1, 2, 3]).is_none());
    }

    /// A cell counts the thresholds that do not exceed a value, wherever it is.
    #[test]
    fn a_cell_of_the_map_counts() {
        for count in 1..=32 {
            let thresholds: Vec<f32> =
                (0..count).map(|n| (2 * n + 1) as f32 / count as f32 - 1.0 + 1e-3).collect();
            let [cells, counts] = map_cells(&thresholds).expect("far enough apart");
            let check = |v: f32| {
                let cell = along(v, 0.5, 0.5) / 4;
                let below = counts[cell] + u32::from(v >= f32::from_bits(cells[cell]));
                assert_eq!(below as usize, thresholds.iter().filter(|t| **t <= v).count(), "{v}");
            };
            thresholds.iter().for_each(|t| [t.next_down(), *t, t.next_up()].into_iter().for_each(check));
            (-1100..=1100).for_each(|n| check(n as f32 * 1e-3));
        }
        assert!(map_cells(&[0.5, 0.501]).is_none());
    }
}

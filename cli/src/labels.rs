//! Places the labels of a plot next to their points, never over a mark or another label.

/// A rectangle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Area {
    pub(crate) left: f64,
    pub(crate) top: f64,
    pub(crate) right: f64,
    pub(crate) bottom: f64,
}

impl Area {
    /// A square around a point.
    pub(crate) fn around((x, y): (f64, f64), half: f64) -> Self {
        Self { left: x - half, top: y - half, right: x + half, bottom: y + half }
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.left < other.right
            && other.left < self.right
            && self.top < other.bottom
            && other.top < self.bottom
    }

    fn contains(&self, (x, y): (f64, f64)) -> bool {
        (self.left..=self.right).contains(&x) && (self.top..=self.bottom).contains(&y)
    }

    fn is_within(&self, other: &Self) -> bool {
        self.left >= other.left
            && self.right <= other.right
            && self.top >= other.top
            && self.bottom <= other.bottom
    }

    /// The point of this rectangle that is nearest to another one.
    pub(crate) fn nearest(&self, (x, y): (f64, f64)) -> (f64, f64) {
        (x.clamp(self.left, self.right), y.clamp(self.top, self.bottom))
    }
}

/// Points at most 5 apart on the way from `a` to `b`.
pub(crate) fn between(a: (f64, f64), b: (f64, f64)) -> impl Iterator<Item = (f64, f64)> {
    let steps = ((b.0 - a.0).hypot(b.1 - a.1) / 5.0).ceil().max(1.0);
    (0..=steps as u32).map(move |i| {
        let share = f64::from(i) / steps;
        (a.0 + (b.0 - a.0) * share, a.1 + (b.1 - a.1) * share)
    })
}

/// Areas of a plot that already have a label or a point.
pub(crate) struct Room {
    /// Labels stay inside this rectangle.
    pub(crate) frame: Area,
    /// Marks and labels; a new label never covers them.
    pub(crate) taken: Vec<Area>,
    /// Points of lines, which labels avoid if they can.
    pub(crate) lines: Vec<(f64, f64)>,
}

impl Room {
    /// Reserves a place of this size for the label of a point. Returns `None` if all places within reach are taken.
    pub(crate) fn place(&mut self, point: (f64, f64), (width, height): (f64, f64)) -> Option<Area> {
        const DIRECTIONS: u32 = 24;
        let mut best: Option<(f64, Area)> = None;
        for ring in 0..16 {
            let away = 10.0 + 9.0 * f64::from(ring);
            if best.is_some_and(|(cost, _)| cost <= away) {
                break;
            }
            for direction in 0..DIRECTIONS {
                let (sin, cos) =
                    (f64::from(direction) / f64::from(DIRECTIONS) * std::f64::consts::TAU).sin_cos();
                let left = point.0 + away * cos - width * (1.0 - cos) / 2.0;
                let top = point.1 + away * sin - height * (1.0 - sin) / 2.0;
                let area = Area { left, top, right: left + width, bottom: top + height };
                if !area.is_within(&self.frame) || self.taken.iter().any(|other| area.overlaps(other)) {
                    continue;
                }
                let covered = self.lines.iter().filter(|at| area.contains(**at)).count() as f64;
                // A lead that crosses marks or labels is not readable.
                let lead = between(point, area.nearest(point))
                    .filter(|at| (at.0 - point.0).hypot(at.1 - point.1) > 9.0);
                let crossed =
                    lead.filter(|at| self.taken.iter().any(|other| other.contains(*at))).count() as f64;
                // A label at the height of its point reads best.
                let cost = away + 5.0 * covered + 14.0 * crossed + 3.0 * sin.abs();
                if best.is_none_or(|(least, _)| cost < least) {
                    best = Some((cost, area));
                }
            }
        }
        let (_, area) = best?;
        self.taken.push(area);
        Some(area)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // tests fail by panicking
mod tests {
    use super::*;

    fn room() -> Room {
        let frame = Area { left: 0.0, top: 0.0, right: 400.0, bottom: 300.0 };
        Room { frame, taken: Vec::new(), lines: Vec::new() }
    }

    #[test]
    fn labels_overlap_nothing_and_stay_inside() {
        let points: Vec<(f64, f64)> =
            (0..40).map(|i| (f64::from(i * 97 % 400), f64::from(i * 61 % 300))).collect();
        let mut room = room();
        room.taken.extend(points.iter().map(|point| Area::around(*point, 6.0)));
        let placed: Vec<Area> = points.iter().filter_map(|point| room.place(*point, (70.0, 14.0))).collect();
        assert!(placed.len() > 20, "{} of 40", placed.len());
        for (i, area) in room.taken.iter().enumerate().skip(points.len()) {
            assert!(area.is_within(&room.frame));
            assert!(room.taken[..i].iter().all(|other| !area.overlaps(other)), "{area:?}");
        }
    }

    #[test]
    fn alone_a_label_is_beside_its_point_and_without_room_there_is_none() {
        let area = room().place((100.0, 100.0), (50.0, 14.0)).unwrap();
        assert!((area.left - 110.0).abs() < 1.0 && (area.top - 93.0).abs() < 1.0, "{area:?}");
        assert!(room().place((100.0, 100.0), (500.0, 14.0)).is_none());
    }

    #[test]
    fn lines_are_avoided_where_there_is_another_place() {
        let mut room = room();
        room.lines.extend(between((100.0, 100.0), (300.0, 100.0)));
        let area = room.place((100.0, 100.0), (50.0, 14.0)).unwrap();
        assert!(!room.lines.iter().skip(2).any(|at| area.contains(*at)), "{area:?}");
    }
}

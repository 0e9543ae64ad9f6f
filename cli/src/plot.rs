//! Scatter plots as SVG text: bits across, an error on a logarithmic axis upwards. Curves join a codec's rates, a broad
//! line the points that no other beats at their rate (the Pareto front). Labels never collide: front points come first,
//! and a label that does not fit is left to the pointer and to the tables. On a narrow screen letters grow and only the
//! labels of the front remain. Colours are CSS classes, for light and for dark screens.

use crate::labels::{Area, Room, between};
use std::fmt::Write;

/// A point.
pub(crate) struct Point {
    /// Bits per value.
    pub(crate) x: f64,
    /// The error. Points without a positive error are left out.
    pub(crate) y: f64,
    /// The text next to the point: the codec in full.
    pub(crate) label: String,
    /// The text that appears under the pointer.
    pub(crate) tip: String,
    /// The index of its colour and shape.
    pub(crate) series: usize,
    /// Points with the same curve are joined.
    pub(crate) curve: String,
    /// Draws only its outline.
    pub(crate) hollow: bool,
}

/// A chart.
pub(crate) struct Chart<'a> {
    pub(crate) title: &'a str,
    /// The title of the horizontal axis: which bits it counts.
    pub(crate) x_axis: &'a str,
    pub(crate) y_axis: &'a str,
    pub(crate) points: Vec<Point>,
    /// Draws 2^(-2·bits), the least distortion of Gaussian vectors.
    pub(crate) bound: bool,
}

/// Colours and shapes.
const SERIES: usize = 10;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 620.0;
const LEFT: f64 = 94.0;
const RIGHT: f64 = 18.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 56.0;

/// Width of a label's letter and height of its line; on narrow screens, half as much again.
const LETTER: f64 = 7.4;
const LINE: f64 = 15.0;
const NARROW: f64 = 1.5;

/// The ranges that the axes show.
struct Axes {
    x: (f64, f64),
    /// Decimal logarithms.
    y: (f64, f64),
}

impl Axes {
    fn around(points: &[&Point]) -> Self {
        let range = |values: &mut dyn Iterator<Item = f64>| {
            values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
                (low.min(value), high.max(value))
            })
        };
        let x = range(&mut points.iter().map(|point| point.x));
        let y = range(&mut points.iter().map(|point| point.y.log10()));
        let space = ((y.1 - y.0) * 0.07).max(0.01);
        Self { x: ((x.0 - 0.3).floor().max(0.0), (x.1 + 0.3).ceil()), y: (y.0 - space, y.1 + space) }
    }

    fn x(&self, bits: f64) -> f64 {
        LEFT + (bits - self.x.0) / (self.x.1 - self.x.0) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        let share = (value.log10() - self.y.0) / (self.y.1 - self.y.0);
        HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
    }

    /// Returns the values of the vertical axis that have a line, and whether the axis shows each value.
    fn ticks(&self) -> Vec<(f64, bool)> {
        let (low, high) = (10f64.powf(self.y.0), 10f64.powf(self.y.1));
        let mut ticks = Vec::new();
        if high / low < 8.0 {
            // Nearly linear: about six round steps.
            let raw = (high - low) / 6.0;
            let power = 10f64.powf(raw.log10().floor());
            let step = [1.0, 2.0, 5.0, 10.0].map(|step| step * power).into_iter().find(|step| *step >= raw);
            let step = step.unwrap_or(10.0 * power);
            let (first, last) = ((low / step).ceil() as i64, (high / step).floor() as i64);
            ticks.extend((first..=last).map(|i| (i as f64 * step, true)));
            return ticks;
        }
        for decade in self.y.0.floor() as i32..=self.y.1.ceil() as i32 {
            for step in 1..=9 {
                let value = f64::from(step) * 10f64.powi(decade);
                let is_written = step == 1 || (self.y.1 - self.y.0 < 2.5 && [2, 5].contains(&step));
                ticks.push((value, is_written));
            }
        }
        ticks.retain(|(value, _)| (low..=high).contains(value));
        ticks
    }
}

/// Formats a tick's value, without digits that come from rounding.
fn tick(value: f64) -> String {
    if value < 0.000_99 {
        return format!("{value:e}");
    }
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// An entry of a picture's legend.
pub(crate) struct Key {
    pub(crate) series: usize,
    pub(crate) name: String,
    pub(crate) hollow: bool,
}

/// Returns the chart as a picture of its own, with colours, a background and a legend.
pub(crate) fn picture(chart: &Chart, keys: &[Key]) -> String {
    let inner = svg(chart);
    let Some((_, rest)) = inner.split_once('\n') else {
        return String::new();
    };
    let (mut legend, mut x, mut y) = (String::new(), LEFT + 6.0, HEIGHT + 12.0);
    let mut entry = |mark: &dyn Fn(f64, f64) -> String, name: &str, series: &str| {
        let width = name.chars().count() as f64 * LETTER * NARROW + 44.0;
        if x + width > WIDTH && x > LEFT + 6.0 {
            (x, y) = (LEFT + 6.0, y + LINE * NARROW + 3.0);
        }
        let (left, mark, name) = (x + 16.0, mark(x, y), escape(name));
        let _ = writeln!(
            legend,
            "<g class=\"{series}\">{mark}<text class=\"label\" x=\"{left:.1}\" y=\"{y:.1}\" dy=\".35em\">{name}</text></g>"
        );
        x += width;
    };
    for key in keys {
        let class = format!("s{}{}", key.series % SERIES, if key.hollow { " hollow" } else { "" });
        entry(&|x, y| shape(key.series, x, y), &key.name, &class);
    }
    let line = |x: f64, y: f64| format!("<path class=\"front\" d=\"M{:.1} {y:.1}h20\"/>", x - 10.0);
    entry(&line, "no other is as small and as exact", "plain");
    let line = |x: f64, y: f64| format!("<path class=\"curve rates\" d=\"M{:.1} {y:.1}h20\"/>", x - 10.0);
    entry(&line, "rates of one codec", "plain");
    let (height, title, style) = (y + LINE * 1.5, escape(chart.title), include_str!("plot.css"));
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}\">\n\
         <style>\n{style}</style>\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"var(--card)\"/>\n{legend}{rest}"
    )
}

/// Returns the chart as an `<svg>` element; nothing without points.
fn svg(chart: &Chart) -> String {
    let mut points: Vec<&Point> =
        chart.points.iter().filter(|point| point.y > 0.0 && point.y.is_finite()).collect();
    if points.is_empty() {
        return String::new();
    }
    points.sort_by(|a, b| a.x.total_cmp(&b.x).then(b.y.total_cmp(&a.y)));
    let axes = Axes::around(&points);
    let at = |point: &Point| (axes.x(point.x), axes.y(point.y));
    let mut out = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\n",
        escape(chart.title)
    );
    let mut room = draw_axes(&mut out, chart, &axes);
    let front = front(&points);
    let corners = points.iter().zip(&front).filter(|(_, is_front)| **is_front);
    polyline(&mut out, "front", &corners.map(|(point, _)| at(point)).collect::<Vec<_>>());
    for (i, point) in points.iter().enumerate() {
        if points[..i].iter().any(|other| is_joined(other, point)) {
            continue;
        }
        let joined = points.iter().filter(|other| is_joined(other, point));
        let joined: Vec<_> = joined.map(|other| at(other)).collect();
        room.lines.extend(joined.windows(2).flat_map(|ends| between(ends[0], ends[1])));
        polyline(&mut out, &format!("curve c{}{}", point.series % SERIES, hollow(point)), &joined);
    }
    room.taken.extend(points.iter().map(|point| Area::around(at(point), 7.0)));
    draw_labels(&mut out, &points, &front, &at, &mut room);
    for point in &points {
        let (x, y) = at(point);
        let mark = shape(point.series, x, y);
        let _ = writeln!(
            out,
            "<g class=\"point s{}{}\"><title>{}</title>{mark}</g>",
            point.series % SERIES,
            hollow(point),
            escape(&point.tip),
        );
    }
    out.push_str("</svg>\n");
    out
}

fn is_joined(a: &Point, b: &Point) -> bool {
    a.curve == b.curve && a.series == b.series && a.hollow == b.hollow
}

fn hollow(point: &Point) -> &'static str {
    if point.hollow { " hollow" } else { "" }
}

/// Returns for each point, in order of the rates, whether it is below all points that take no more bits.
fn front(points: &[&Point]) -> Vec<bool> {
    let beats = |a: &Point, b: &Point| a.x <= b.x && a.y <= b.y && (a.x < b.x || a.y < b.y);
    points.iter().map(|point| !points.iter().any(|other| beats(other, point))).collect()
}

fn polyline(out: &mut String, class: &str, line: &[(f64, f64)]) {
    if line.len() < 2 {
        return;
    }
    let line: Vec<_> = line.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let _ = writeln!(out, "<polyline class=\"{class}\" points=\"{}\"/>", line.join(" "));
}

/// Draws labels: those of the front's points, large enough for narrow screens, then those of the others if there is space.
/// If a filled and a hollow mark share a label, the filled one has it.
fn draw_labels(
    out: &mut String,
    points: &[&Point],
    front: &[bool],
    at: &dyn Fn(&Point) -> (f64, f64),
    room: &mut Room,
) {
    let mut order: Vec<(&Point, bool)> = points.iter().copied().zip(front.iter().copied()).collect();
    order.sort_by_key(|(point, is_front)| (!is_front, point.hollow));
    let has_filled = |label: &str| points.iter().any(|other| !other.hollow && other.label == label);
    order.retain(|(point, is_front)| *is_front || !point.hollow || !has_filled(&point.label));
    for (point, is_front) in order {
        let size = if is_front { NARROW } else { 1.0 };
        let width = (point.label.chars().count() as f64 * LETTER + 4.0) * size;
        let (x, y) = at(point);
        let Some(area) = room.place((x, y), (width, LINE * size)) else { continue };
        let (class, middle) = (if is_front { "best" } else { "other" }, f64::midpoint(area.top, area.bottom));
        // Small labels on a wide screen stay at the point's side.
        let (anchor, text_x) = match f64::midpoint(area.left, area.right) {
            centre if centre >= x + width / 4.0 => ("start", area.left + 2.0),
            centre if centre <= x - width / 4.0 => ("end", area.right - 2.0),
            centre => ("middle", centre),
        };
        let (near_x, near_y) = area.nearest((x, y));
        if (near_x - x).hypot(near_y - y) > 13.0 {
            let end = middle.clamp(near_y - 4.0, near_y + 4.0);
            let _ = writeln!(
                out,
                "<line class=\"lead {class}\" x1=\"{x:.1}\" y1=\"{y:.1}\" x2=\"{near_x:.1}\" y2=\"{end:.1}\"/>"
            );
        }
        let _ = writeln!(
            out,
            "<text class=\"label {class} s{}\" x=\"{text_x:.1}\" y=\"{middle:.1}\" dy=\".35em\" text-anchor=\"{anchor}\">{}</text>",
            point.series % SERIES,
            escape(&point.label)
        );
    }
}

/// Draws grid, ticks, names of the axes and bound. Returns the space that is left for labels.
fn draw_axes(out: &mut String, chart: &Chart, axes: &Axes) -> Room {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    let frame = Area { left: LEFT + 3.0, top: TOP, right: right - 2.0, bottom: bottom - 2.0 };
    let mut room = Room { frame, taken: Vec::new(), lines: Vec::new() };
    for bits in axes.x.0 as u32..=axes.x.1 as u32 {
        let (x, under) = (axes.x(bits.into()), bottom + 20.0);
        let _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{bottom}\"/>\
             <text class=\"tick\" x=\"{x:.1}\" y=\"{under}\" text-anchor=\"middle\">{bits}</text>",
        );
    }
    for (value, is_written) in axes.ticks() {
        let (y, class) = (axes.y(value), if is_written { "grid" } else { "grid minor" });
        let _ = writeln!(
            out,
            "<line class=\"{class}\" x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\"/>"
        );
        if is_written {
            let _ = writeln!(
                out,
                "<text class=\"tick\" x=\"{}\" y=\"{y:.1}\" dy=\".35em\" text-anchor=\"end\">{}</text>",
                LEFT - 7.0,
                tick(value)
            );
        }
    }
    if chart.bound {
        draw_bound(out, axes, &mut room);
    }
    let _ = writeln!(
        out,
        "<text class=\"axis\" x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>\
         <text class=\"axis\" transform=\"translate(17 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
        f64::midpoint(LEFT, right),
        HEIGHT - 9.0,
        escape(chart.x_axis),
        f64::midpoint(TOP, bottom),
        escape(chart.y_axis)
    );
    room
}

/// Returns the curve 2^(-2·bits) and its name.
fn draw_bound(out: &mut String, axes: &Axes, room: &mut Room) {
    let at = |i: u32| axes.x.0 + (axes.x.1 - axes.x.0) * f64::from(i) / 60.0;
    let inside = (0..=60).map(|i| (at(i), (-2.0 * at(i)).exp2()));
    let inside = inside.filter(|(_, y)| (axes.y.0..=axes.y.1).contains(&y.log10()));
    let inside: Vec<_> = inside.map(|(x, y)| (axes.x(x), axes.y(y))).collect();
    polyline(out, "bound", &inside);
    room.lines.extend(inside.windows(2).flat_map(|ends| between(ends[0], ends[1])));
    let Some((x, y)) = inside.get(inside.len() * 3 / 5) else { return };
    let name = "Shannon, Gaussian";
    let left = x - name.len() as f64 * LETTER * NARROW - 6.0;
    room.taken.push(Area { left, top: y - 2.0, right: *x, bottom: y + LINE * NARROW });
    let _ = writeln!(
        out,
        "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{name}</text>",
        x - 6.0,
        y + 12.0
    );
}

/// Returns a series' mark, centred: ten marks that differ in outline.
fn shape(series: usize, x: f64, y: f64) -> String {
    let polygon = |corners: &[(f64, f64)]| {
        let corners: Vec<_> = corners.iter().map(|(dx, dy)| format!("{:.1},{:.1}", x + dx, y + dy)).collect();
        format!("<polygon points=\"{}\"/>", corners.join(" "))
    };
    match series % SERIES {
        0 => format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5.2\"/>"),
        1 => polygon(&[(-4.7, -4.7), (4.7, -4.7), (4.7, 4.7), (-4.7, 4.7)]),
        2 => polygon(&[(0.0, -6.4), (6.2, 4.6), (-6.2, 4.6)]),
        3 => polygon(&[(0.0, -6.8), (6.8, 0.0), (0.0, 6.8), (-6.8, 0.0)]),
        4 => polygon(&[(0.0, 6.4), (6.2, -4.6), (-6.2, -4.6)]),
        5 => {
            let (a, b) = (2.1, 6.2);
            polygon(&[
                (-a, -b),
                (a, -b),
                (a, -a),
                (b, -a),
                (b, a),
                (a, a),
                (a, b),
                (-a, b),
                (-a, a),
                (-b, a),
                (-b, -a),
                (-a, -a),
            ])
        }
        6 => {
            let (a, b, c) = (2.9, 6.3, 3.4);
            polygon(&[
                (0.0, -a),
                (c, -b),
                (b, -c),
                (a, 0.0),
                (b, c),
                (c, b),
                (0.0, a),
                (-c, b),
                (-b, c),
                (-a, 0.0),
                (-b, -c),
                (-c, -b),
            ])
        }
        7 => {
            let corner = |i: u32| {
                let (sin, cos) = (f64::from(i) * std::f64::consts::TAU / 10.0).sin_cos();
                let radius = if i.is_multiple_of(2) { 7.4 } else { 3.2 };
                (radius * sin, -radius * cos)
            };
            polygon(&(0..10).map(corner).collect::<Vec<_>>())
        }
        8 => polygon(&[(-5.6, -5.6), (5.6, -5.6), (-5.6, 5.6), (5.6, 5.6)]),
        _ => polygon(&[(-4.6, -6.2), (6.4, 0.0), (-4.6, 6.2)]),
    }
}

/// Escapes text for SVG.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(x: f64, y: f64, curve: &str) -> Point {
        let label = format!("{curve}:{x}");
        Point { x, y, tip: label.clone(), label, series: 1, curve: curve.into(), hollow: false }
    }

    fn chart(points: Vec<Point>) -> Chart<'static> {
        Chart { title: "t", x_axis: "bits in pages", y_axis: "e", points, bound: false }
    }

    #[test]
    fn the_front_is_what_nothing_beats() {
        let points = [
            point(2.0, 0.1, "a"),
            point(3.0, 0.2, "b"),
            point(3.0, 0.01, "a"),
            point(3.5, 0.01, "c"),
            point(4.0, 0.001, "a"),
        ];
        assert_eq!(front(&points.iter().collect::<Vec<_>>()), [true, false, true, false, true]);
        let twins = [point(2.0, 0.1, "a"), point(2.0, 0.1, "b")];
        assert_eq!(front(&twins.iter().collect::<Vec<_>>()), [true, true]);
    }

    #[test]
    fn curves_join_a_codecs_points_and_labels_are_full() {
        let text = svg(&chart(vec![point(2.0, 0.1, "a"), point(4.0, 0.001, "a"), point(3.0, 0.5, "b")]));
        assert_eq!(text.matches("class=\"curve ").count(), 1, "{text}");
        assert_eq!(text.matches("class=\"front\"").count(), 1, "{text}");
        for label in ["a:2", "a:4", "b:3", "bits in pages"] {
            assert!(text.contains(&format!(">{label}</text>")), "{text}");
        }
    }

    #[test]
    fn ten_marks_differ() {
        let marks: Vec<String> = (0..SERIES).map(|series| shape(series, 0.0, 0.0)).collect();
        assert!((0..SERIES).all(|i| !marks[..i].contains(&marks[i])));
        let style = include_str!("plot.css");
        assert!(
            (0..SERIES).all(|i| style.contains(&format!(".s{i} {{")) && style.contains(&format!(".c{i} {{")))
        );
    }

    #[test]
    fn ticks_have_no_leftovers() {
        assert_eq!([0.1 + 0.2, 25.0, 0.002, 0.0005].map(tick), ["0.3", "25", "0.002", "5e-4"]);
    }
}

//! Scatter plots as SVG text: bits across, an error on a logarithmic axis upwards, every point labelled. Colours are
//! CSS classes, so that the page decides about light and dark.

use std::fmt::Write;

/// A point.
pub(crate) struct Point {
    /// Bits per value.
    pub(crate) x: f64,
    /// The error; points without a positive one are left out.
    pub(crate) y: f64,
    /// Beside the point.
    pub(crate) label: String,
    /// When the pointer is on it.
    pub(crate) tip: String,
    /// Which colour and shape.
    pub(crate) series: usize,
}

/// A chart.
pub(crate) struct Chart<'a> {
    pub(crate) title: &'a str,
    pub(crate) axis: &'a str,
    pub(crate) points: Vec<Point>,
    /// Whether to draw 2^(-2·bits), the least distortion of Gaussian vectors.
    pub(crate) bound: bool,
}

/// Colours and shapes before they repeat.
pub(crate) const SERIES: usize = 8;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 460.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 44.0;

/// Width of a label's letter and height of its line.
const LETTER: f64 = 6.0;
const LINE: f64 = 13.0;

/// The ranges that the axes show.
struct Axes {
    x: (f64, f64),
    /// Decimal logarithms.
    y: (f64, f64),
}

impl Axes {
    fn around(points: &[&Point]) -> Self {
        let range = |values: &dyn Fn(&Point) -> f64| {
            let low = points.iter().map(|p| values(p)).fold(f64::INFINITY, f64::min);
            (low, points.iter().map(|p| values(p)).fold(f64::NEG_INFINITY, f64::max))
        };
        let (x, y) = (range(&|p| p.x), range(&|p| p.y.log10()));
        let space = ((y.1 - y.0) * 0.08).max(0.15);
        Self { x: ((x.0 - 0.4).floor().max(0.0), (x.1 + 0.6).ceil()), y: (y.0 - space, y.1 + space) }
    }

    fn x(&self, bits: f64) -> f64 {
        LEFT + (bits - self.x.0) / (self.x.1 - self.x.0) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        let share = (value.log10() - self.y.0) / (self.y.1 - self.y.0);
        HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
    }
}

/// A rectangle that labels keep clear of.
#[derive(Clone, Copy)]
struct Area {
    left: f64,
    top: f64,
    right: f64,
    bottom: f64,
}

impl Area {
    fn overlap(&self, other: &Self) -> f64 {
        let width = self.right.min(other.right) - self.left.max(other.left);
        let height = self.bottom.min(other.bottom) - self.top.max(other.top);
        width.max(0.0) * height.max(0.0)
    }

    fn outside(&self) -> f64 {
        let over = |x: f64| x.max(0.0);
        over(LEFT + 2.0 - self.left)
            + over(self.right - WIDTH + 2.0)
            + over(TOP - self.top)
            + over(self.bottom - HEIGHT + BOTTOM)
    }
}

/// The chart as a picture of its own: with colours, a background, and under it what each series is.
pub(crate) fn picture(chart: &Chart, series: &[&str]) -> String {
    let inner = svg(chart);
    let Some((_, rest)) = inner.split_once('\n') else {
        return String::new();
    };
    let (mut legend, mut x, mut y) = (String::new(), LEFT + 6.0, HEIGHT + 10.0);
    for (number, name) in series.iter().enumerate() {
        let width = name.chars().count() as f64 * LETTER + 36.0;
        if x + width > WIDTH {
            (x, y) = (LEFT + 6.0, y + LINE + 4.0);
        }
        let (class, mark, left, base) = (number % SERIES, shape(number, x, y), x + 11.0, y + 4.0);
        let name = escape(name);
        let _ = writeln!(
            legend,
            "<g class=\"s{class}\">{mark}<text x=\"{left:.1}\" y=\"{base:.1}\">{name}</text></g>"
        );
        x += width;
    }
    let (height, title, style) = (y + LINE, escape(chart.title), include_str!("report.css"));
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}\">\n\
         <style>\n{style}</style>\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"var(--card)\"/>\n{legend}{rest}"
    )
}

/// The chart as an `<svg>` element; nothing without points.
pub(crate) fn svg(chart: &Chart) -> String {
    let points: Vec<&Point> =
        chart.points.iter().filter(|point| point.y > 0.0 && point.y.is_finite()).collect();
    if points.is_empty() {
        return String::new();
    }
    let axes = Axes::around(&points);
    let mut out = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\n",
        escape(chart.title)
    );
    let bound = draw_axes(&mut out, chart, &axes);
    let marks: Vec<Area> = points
        .iter()
        .map(|point| (axes.x(point.x), axes.y(point.y)))
        .map(|(x, y)| Area { left: x - 6.0, top: y - 6.0, right: x + 6.0, bottom: y + 6.0 })
        .collect();
    let mut taken = [bound, marks].concat();
    let mut order: Vec<&&Point> = points.iter().collect();
    order.sort_by(|a, b| a.x.total_cmp(&b.x).then(b.y.total_cmp(&a.y)));
    for point in &order {
        let (x, y) = (axes.x(point.x), axes.y(point.y));
        let area = place(&point.label, x, y, &taken);
        taken.push(area);
        let (near_x, near_y) = (x.clamp(area.left, area.right), y.clamp(area.top + 2.0, area.bottom - 2.0));
        if (near_x - x).hypot(near_y - y) > 14.0 {
            let _ = writeln!(
                out,
                "<line class=\"lead\" x1=\"{x:.1}\" y1=\"{y:.1}\" x2=\"{near_x:.1}\" y2=\"{near_y:.1}\"/>"
            );
        }
        let _ = writeln!(
            out,
            "<text class=\"label s{}\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            point.series % SERIES,
            area.left + 1.0,
            area.bottom - 3.0,
            escape(&point.label)
        );
    }
    for point in &order {
        let _ = writeln!(
            out,
            "<g class=\"point s{}\"><title>{}</title>{}</g>",
            point.series % SERIES,
            escape(&point.tip),
            shape(point.series, axes.x(point.x), axes.y(point.y))
        );
    }
    out.push_str("</svg>\n");
    out
}

/// Returns what the line of the bound covers.
fn draw_axes(out: &mut String, chart: &Chart, axes: &Axes) -> Vec<Area> {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    let mut bits = axes.x.0;
    while bits <= axes.x.1 {
        let x = axes.x(bits);
        let _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{bottom}\"/>\
             <text class=\"tick\" x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{bits}</text>",
            bottom + 17.0
        );
        bits += 1.0;
    }
    for decade in axes.y.0.floor() as i32..=axes.y.1.ceil() as i32 {
        for step in 1..=9 {
            let value = f64::from(step) * 10f64.powi(decade);
            if !(axes.y.0..=axes.y.1).contains(&value.log10()) {
                continue;
            }
            let (y, class) = (axes.y(value), if step == 1 { "grid" } else { "grid minor" });
            let _ = writeln!(
                out,
                "<line class=\"{class}\" x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\"/>"
            );
            if step == 1 || (axes.y.1 - axes.y.0 < 2.5 && [2, 5].contains(&step)) {
                let _ = writeln!(
                    out,
                    "<text class=\"tick\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                    LEFT - 7.0,
                    y + 4.0,
                    if value < 0.000_99 { format!("{value:e}") } else { format!("{value}") }
                );
            }
        }
    }
    let mut covered = Vec::new();
    if chart.bound {
        let at = |i: u32| axes.x.0 + (axes.x.1 - axes.x.0) * f64::from(i) / 60.0;
        let inside = (0..=60).map(|i| (at(i), (-2.0 * at(i)).exp2()));
        let inside = inside.filter(|(_, y)| (axes.y.0..=axes.y.1).contains(&y.log10()));
        let inside: Vec<_> = inside.map(|(x, y)| (axes.x(x), axes.y(y))).collect();
        let line: Vec<_> = inside.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(out, "<polyline class=\"bound\" points=\"{}\"/>", line.join(" "));
        let between = inside.windows(2).map(|ends| Area {
            left: ends[0].0,
            top: ends[0].1,
            right: ends[1].0,
            bottom: ends[1].1,
        });
        covered.extend(between);
        if let Some((x, y)) = inside.get(inside.len() * 2 / 3) {
            let name = "Shannon bound ";
            let left = x - name.len() as f64 * LETTER;
            covered.push(Area { left, top: y - 2.0, right: *x, bottom: y + LINE });
            let _ = writeln!(
                out,
                "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{name}</text>",
                x - 4.0,
                y + 8.0
            );
        }
    }
    let _ = writeln!(
        out,
        "<text class=\"axis\" x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">bits per value, everything counted</text>\
         <text class=\"axis\" transform=\"translate(13 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
        (LEFT + right) / 2.0,
        HEIGHT - 8.0,
        (TOP + bottom) / 2.0,
        escape(chart.axis)
    );
    covered
}

/// Where a label goes: the nearest place around its point that covers least of what is there.
fn place(label: &str, x: f64, y: f64, taken: &[Area]) -> Area {
    let width = label.chars().count() as f64 * LETTER + 2.0;
    let mut best = (f64::INFINITY, Area { left: x, top: y, right: x + width, bottom: y + LINE });
    for ring in 0..7 {
        let away = 9.0 + f64::from(ring) * 9.0;
        for (dx, dy) in [(1, 0), (-1, 0), (1, -1), (1, 1), (-1, -1), (-1, 1), (0, -1), (0, 1)] {
            let left = match dx {
                1 => x + if dy == 0 { away } else { 7.0 },
                -1 => x - width - if dy == 0 { away } else { 7.0 },
                _ => x - width / 2.0,
            };
            let top = y - LINE / 2.0 + f64::from(dy) * if dx == 0 { away + 6.0 } else { away };
            let area = Area { left, top, right: left + width, bottom: top + LINE };
            let covered: f64 = taken.iter().map(|other| area.overlap(other)).sum();
            let cost = covered * 4.0 + area.outside() * 60.0 + away;
            if cost < best.0 {
                best = (cost, area);
            }
        }
    }
    best.1
}

/// A series' mark, centred.
pub(crate) fn shape(series: usize, x: f64, y: f64) -> String {
    // Where colours repeat, shapes do not.
    match (series + series / SERIES) % 4 {
        0 => format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\"/>"),
        1 => format!("<rect x=\"{:.1}\" y=\"{:.1}\" width=\"9\" height=\"9\"/>", x - 4.5, y - 4.5),
        2 => format!("<path d=\"M{x:.1} {:.1}l5.6 10h-11.2z\"/>", y - 6.0),
        _ => format!("<path d=\"M{x:.1} {:.1}l6.2 6.2l-6.2 6.2l-6.2 -6.2z\"/>", y - 6.2),
    }
}

/// Text for HTML and SVG.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

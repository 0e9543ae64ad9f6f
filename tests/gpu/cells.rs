//! Compares cells on a GPU with cells on the CPU, and attention on them with f64.

use super::{device, vectors::Random};
use half::f16;
use octaplex::cells::{CellConfig, CellPages, in_order};
use octaplex::codecs::Role;
use octaplex::gpu::cells::{
    Address, Area, Book, CellAttention, CellLayer, CellPlan, PAGE, Scratch, Settled, Write,
};
use octaplex::gpu::{Device, Error};
use octaplex::{Backend, CodecSpec, LayerConfig};

const PAGES: usize = 8;
const HEADS: usize = 2;
const GROUP: usize = 3;

/// A layer, and f16 memory for all its cells.
struct Case {
    book: Book,
    plan: CellPlan,
    layer: CellLayer,
    scratch: Scratch,
    area: Area,
    dim: usize,
}

fn bytes_of<T: Copy, const N: usize>(values: &[T], bytes: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|x| bytes(*x)).collect()
}

impl Case {
    fn new(device: &Device, dim: usize, [keys, values]: [&str; 2]) -> Self {
        let book = Book::new(PAGES, 1, 4, 2);
        let config = LayerConfig::new(HEADS, dim, PAGES * PAGE)
            .keys(keys.parse().unwrap())
            .values(values.parse().unwrap())
            .layer(3);
        let plan = CellPlan::new(device, PAGES, 1, book.exact()).unwrap();
        let mut layer = CellLayer::new(device, &config, PAGES, book.exact()).unwrap();
        layer.prepare(HEADS * GROUP, &[]).unwrap();
        let side = 2 * PAGES * PAGE * HEADS * dim;
        let scratch = Scratch::new(device, 2 * side).unwrap();
        let area = Area { keys: scratch.address(0), values: scratch.address(side), cells: PAGES * PAGE };
        Self { book, plan, layer, scratch, area, dim }
    }

    fn place(&mut self) {
        self.plan.set_places(self.book.places()).unwrap();
        self.plan.set_table(0, &self.book.closed(0, PAGES)).unwrap();
    }

    /// Brings all rows to the area.
    fn open(&mut self) {
        let closed = self.book.closed_in(0..PAGES * PAGE);
        self.plan.set_opening(&closed).unwrap();
        let area = self.area;
        self.layer.pool().open(&self.plan, &area).unwrap();
    }

    /// Returns the cells that were refused.
    fn settle(&mut self, settled: &Settled) -> Vec<(u32, u64)> {
        let area = self.area;
        self.plan.set_closing(&settled.stash, &settled.close).unwrap();
        self.layer.settle(&self.plan, settled, &area).unwrap();
        self.place();
        self.plan.take_lost().unwrap()
    }

    /// Writes rows of cells 0 to `count`, as a prompt.
    fn fill(&mut self, sides: &[Vec<f16>; 2], count: usize) -> Vec<(u32, u64)> {
        for (side, rows) in sides.iter().enumerate() {
            let bytes = bytes_of(&rows[..count * HEADS * self.dim], f16::to_le_bytes);
            let area = self.area;
            self.layer.pool().bring(&area, side == 1, 0, &bytes).unwrap();
        }
        let settled = self.book.rewrite(&(0..count).collect::<Vec<_>>(), &[]);
        self.settle(&settled)
    }

    fn rows(&mut self, count: usize) -> [Vec<f32>; 2] {
        self.scratch.write(0, &vec![0; self.scratch.bytes()]).unwrap();
        self.open();
        let area = self.area;
        [false, true].map(|values| {
            let bytes = self.layer.pool().read(&area, values, 0..count).unwrap();
            bytes.as_chunks::<2>().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect()
        })
    }
}

fn made(random: &mut Random, dim: usize) -> [Vec<f16>; 2] {
    let mut normal = || random.gaussian();
    [3.0, 0.0].map(|offset: f32| {
        let row = |at: usize, x: f32| {
            let c = at % dim;
            f16::from_f32(x * (0.3 + (c % 7) as f32 / 3.0) + if c == 5 { offset } else { 0.0 })
        };
        (0..PAGES * PAGE * HEADS * dim).map(|at| row(at, normal())).collect()
    })
}

/// Rows that the CPU decodes from the same cells.
fn of_cpu(role: Role, codec: &str, dim: usize, rows: &[f16], count: usize) -> Vec<f32> {
    let codec: CodecSpec = codec.parse().unwrap();
    let config = CellConfig::new(role, HEADS, dim, PAGES * PAGE).codec(codec).layer(3);
    let mut pages = CellPages::new(&config, Backend::detect()).unwrap();
    let width = HEADS * dim;
    let values: Vec<f32> = rows[..count * width].iter().map(|x| x.to_f32()).collect();
    pages.set_rows(&(0..count).collect::<Vec<_>>(), &values).unwrap();
    pages.settle(&[], &in_order).unwrap();
    assert!(pages.counts().closed > 0);
    let mut out = vec![f16::ZERO; count * width];
    pages.read_rows(0..count, &mut out).unwrap();
    out.iter().map(|x| x.to_f32()).collect()
}

fn distance(a: &[f32], b: &[f32]) -> f64 {
    let squares = |f: &dyn Fn(usize) -> f64| (0..a.len()).map(|i| f(i) * f(i)).sum::<f64>();
    (squares(&|i| f64::from(a[i]) - f64::from(b[i])) / squares(&|i| f64::from(b[i]))).sqrt()
}

const CASES: [(usize, [&str; 2]); 5] = [
    (128, ["graded", "trellis"]),
    (64, ["turboquant", "turboquant"]),
    (80, ["trellis", "trellis"]),
    (96, ["tq3_0", "int:bits=4"]),
    (256, ["trellis:m=2", "turboquant:bits=3"]),
];

/// Prompts, then single tokens, then a cell of a closed page. Every row is that of the CPU, and attention that of f64.
#[test]
fn cells_are_the_cpus() {
    let Some(device) = device() else { return };
    for (dim, specs) in CASES {
        let mut random = Random::new(11);
        let sides = made(&mut random, dim);
        let (count, width) = (300, HEADS * dim);
        let mut case = Case::new(&device, dim, specs);
        assert!(case.fill(&sides, count).is_empty());
        let rows = case.rows(count);
        for (side, role) in [Role::Keys, Role::Values].into_iter().enumerate() {
            let expected = of_cpu(role, specs[side], dim, &sides[side], count);
            let (found, exact) = (distance(&rows[side], &expected), &sides[side][..4 * width]);
            let first: Vec<f32> = exact.iter().map(|x| x.to_f32()).collect();
            assert_eq!(rows[side][..4 * width], first, "{specs:?}: the first cells");
            println!("{specs:?}, width {dim}, {role:?}: {found:.1e} from the CPU's rows");
            assert!(found < 2e-3, "{specs:?} {role:?}: {found}");
        }
        check_attention(&device, &mut case, &mut random, count, &[]);
        // Tokens one by one, until a page closes.
        let mut written = rows;
        for cell in count..count + 70 {
            let indices = Scratch::new(&device, 16).unwrap();
            indices.write(0, &(cell as i64).to_le_bytes()).unwrap();
            assert!(case.book.write(&[cell]));
            case.place();
            let memory = Scratch::new(&device, 2 * 4 * width).unwrap();
            let mut given = [None; 2];
            for (side, all) in sides.iter().enumerate() {
                let row: Vec<f32> = all[cell * width..][..width].iter().map(|x| x.to_f32()).collect();
                memory.write(side * 4 * width, &bytes_of(&row, f32::to_le_bytes)).unwrap();
                given[side] = Some((memory.address(side * 4 * width), width));
                written[side].extend(row);
            }
            // Both sides at once, and each alone.
            let writes = if cell % 2 == 0 { vec![given] } else { vec![[given[0], None], [None, given[1]]] };
            for rows in writes {
                let write = Write { rows, indices: indices.address(0), wide: true, count: 1, first: 0 };
                case.layer.pool().write(&case.plan, &write).unwrap();
            }
            let area = case.area;
            case.layer.pool().read(&area, false, 0..1).unwrap(); // waits
            if let Some(settled) = case.book.settle(&[]) {
                case.open();
                assert!(case.settle(&settled).is_empty());
            }
        }
        let rows = case.rows(count + 70);
        for side in [0, 1] {
            let found = distance(&rows[side], &written[side]);
            println!("{specs:?}, width {dim}: {found:.2} from the written rows");
            assert!(found < 0.35, "{specs:?}: {found}");
            assert_eq!(rows[side][(count + 60) * width..], written[side][(count + 60) * width..]);
        }
        check_attention(&device, &mut case, &mut random, count + 70, &[]);
    }
}

/// Rows that are not finite, or too large for a codec, are named. They spoil no other row, and no attention that does not see
/// them.
#[test]
fn rows_that_cannot_be_held_are_lost() {
    let Some(device) = device() else { return };
    let (dim, count, width) = (64, 300, HEADS * 64);
    let mut random = Random::new(12);
    let mut sides = made(&mut random, dim);
    let good = sides.clone();
    sides[0][100 * width + 7] = f16::NAN; // of a page that closes
    sides[1][290 * width + 70] = f16::INFINITY; // of one that stays open
    sides[1][130 * width..131 * width].fill(f16::MAX); // its norm is no f16
    let mut case = Case::new(&device, dim, ["turboquant", "trellis"]);
    let lost = case.fill(&sides, count);
    assert_eq!(lost, [(1, 1 << 36), (2, u64::MAX), (4, 1 << 34)]);
    assert!(case.plan.take_lost().unwrap().is_empty(), "they are named once");
    case.book.lose(&lost);
    case.place();
    let cells = case.book.lost();
    assert_eq!((cells.len(), cells[0], cells[65 - 1], cells[65]), (66, 100, 191, 290));
    let rows = case.rows(count);
    for side in [0, 1] {
        let held = |cell: &usize| !cells.contains(cell);
        let all = |rows: &dyn Fn(usize) -> f32| -> Vec<f32> {
            (0..count)
                .filter(held)
                .flat_map(|cell| (0..width).map(move |c| cell * width + c))
                .map(rows)
                .collect()
        };
        let found = distance(&all(&|at| rows[side][at]), &all(&|at| good[side][at].to_f32()));
        assert!(found < 0.35, "{side}: {found}");
    }
    check_attention(&device, &mut case, &mut random, count, &cells);
    // Written again, they are as good as any.
    let again: Vec<usize> = (64..300).collect();
    for (side, rows) in good.iter().enumerate() {
        case.open();
        let (bytes, area) = (bytes_of(&rows[64 * width..300 * width], f16::to_le_bytes), case.area);
        case.layer.pool().bring(&area, side == 1, 2 * 64 * width, &bytes).unwrap();
    }
    let settled = case.book.rewrite(&again, &[]);
    assert!(case.settle(&settled).is_empty() && case.book.lost().is_empty());
    check_attention(&device, &mut case, &mut random, count, &[]);
    // One that is not finite, which nobody has forgotten yet, behind a mask.
    let (nan, area) = (bytes_of(&[f16::NAN], f16::to_le_bytes), case.area);
    case.open();
    for side in [false, true] {
        case.layer.pool().bring(&area, side, 2 * 295 * width, &nan).unwrap();
    }
    let settled = case.book.rewrite(&[295], &[]);
    assert_eq!(case.settle(&settled), [(4, 1 << 39)]);
    check_attention(&device, &mut case, &mut random, count, &[295]);
}

/// Several queries under masks of their own, with a soft cap, sink logits and hidden cells.
fn check_attention(device: &Device, case: &mut Case, random: &mut Random, count: usize, hidden: &[usize]) {
    let (dim, queries, heads) = (case.dim, 3, HEADS * GROUP);
    let [keys, values] = case.rows(count);
    let asked: Vec<f32> = (0..queries * heads * dim).map(|_| random.gaussian()).collect();
    let seen = count.next_multiple_of(256);
    let mask: Vec<f16> = (0..queries * seen)
        .map(|at| (at / seen, at % seen))
        .map(|(query, cell)| match cell {
            cell if cell + queries > count + query || (cell + query) % 9 == 4 => f16::NEG_INFINITY,
            cell if hidden.contains(&cell) => f16::NEG_INFINITY,
            cell => f16::from_f32(-0.01 * (cell % 5) as f32),
        })
        .collect();
    let logits: Vec<f32> = (0..heads).map(|head| head as f32 - 2.0).collect();
    let memory = |bytes: &[u8]| {
        let memory = Scratch::new(device, bytes.len()).unwrap();
        memory.write(0, bytes).unwrap();
        memory
    };
    let of_queries = memory(&bytes_of(&asked, f32::to_le_bytes));
    let of_mask = memory(&bytes_of(&mask, f16::to_le_bytes));
    let of_logits = memory(&bytes_of(&logits, f32::to_le_bytes));
    let output = memory(&vec![0; 4 * asked.len()]);
    for (soft_cap, sinks) in [(0.0, false), (5.0, true)] {
        case.plan.set_table(0, &case.book.closed(0, seen / PAGE)).unwrap();
        case.plan.show(0, of_mask.address(0), seen, queries, seen).unwrap();
        let scale = 1.0 / (dim as f32).sqrt();
        let attention = CellAttention {
            stream: 0,
            queries: of_queries.address(0),
            output: output.address(0),
            count: queries,
            scale,
            soft_cap,
            sink_logits: if sinks { of_logits.address(0) } else { Address::NONE },
        };
        case.layer.pool().attend(&case.plan, &attention).unwrap();
        let mut bytes = vec![0; 4 * asked.len()];
        output.read(0, &mut bytes).unwrap();
        let found: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        let mut expected = Vec::new();
        for query in 0..queries {
            for head in 0..heads {
                let q = &asked[(query * heads + head) * dim..][..dim];
                let row = |side: &'_ [f32], cell: usize| {
                    side[(cell * HEADS + head / GROUP) * dim..][..dim].to_vec()
                };
                let weights: Vec<f64> = (0..count)
                    .map(|cell| {
                        if mask[query * seen + cell] == f16::NEG_INFINITY {
                            return 0.0;
                        }
                        let dot: f64 =
                            q.iter().zip(row(&keys, cell)).map(|(a, b)| f64::from(*a) * f64::from(b)).sum();
                        let mut logit = f64::from(scale) * dot;
                        if soft_cap > 0.0 {
                            logit = f64::from(soft_cap) * (logit / f64::from(soft_cap)).tanh();
                        }
                        (logit + f64::from(mask[query * seen + cell].to_f32())).exp()
                    })
                    .collect();
                let sink = if sinks { f64::from(logits[head]).exp() } else { 0.0 };
                let total = weights.iter().sum::<f64>() + sink;
                let mut sum = vec![0.0; dim];
                for (cell, weight) in weights.iter().enumerate().filter(|(_, weight)| **weight > 0.0) {
                    sum.iter_mut()
                        .zip(row(&values, cell))
                        .for_each(|(s, v)| *s += weight / total * f64::from(v));
                }
                expected.extend(sum.iter().map(|x| *x as f32));
            }
        }
        let far = distance(&found, &expected);
        println!("width {dim}, {count} cells, soft cap {soft_cap}: {far:.1e} from f64 on the rows");
        assert!(far < 3e-3, "{far}");
    }
}

#[test]
fn codecs_without_kernels_are_refused() {
    let Some(device) = device() else { return };
    let new = |dim: usize, keys: &str| {
        let config = LayerConfig::new(1, dim, 256).keys(keys.parse().unwrap());
        CellLayer::new(&device, &config, 4, 64)
    };
    for (dim, keys) in
        [(64, "f16"), (64, "turboquant:rotation=haar"), (112, "trellis"), (64, "trellis:scales=3")]
    {
        assert!(
            matches!(new(dim, keys), Err(Error::Unsupported { .. } | Error::Library(_))),
            "{dim}, {keys}"
        );
    }
}

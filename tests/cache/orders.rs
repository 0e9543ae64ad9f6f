//! Rows in other orders and float types than \[heads]\[tokens]\[width] of f32: the same bits.

use crate::common::{Random, bits};
use octaplex::{Attend, Error, Floats, KvCache, Rows, RowsMut, bf16, f16};

const WIDTH: usize = 64;
const HEADS: usize = 2;
const QUERY_HEADS: usize = 4;

fn cache() -> KvCache {
    KvCache::builder(1, HEADS, WIDTH, 1000).query_heads(QUERY_HEADS).build().unwrap()
}

/// \[heads]\[tokens]\[width] as \[tokens]\[heads]\[width].
fn tokens_first<T: Copy>(rows: &[T], heads: usize) -> Vec<T> {
    let tokens = rows.len() / (heads * WIDTH);
    let each = (0..tokens * heads).map(|row| (row % heads) * tokens + row / heads);
    each.flat_map(|row| rows[row * WIDTH..(row + 1) * WIDTH].to_vec()).collect()
}

/// Rows with a gap behind each: the head's and the token's stride.
fn spread<T: Copy + Default>(rows: &[T], heads: usize) -> (Vec<T>, usize, usize) {
    let tokens = rows.len() / (heads * WIDTH);
    let (token_stride, head_stride) = (WIDTH + 3, tokens * (WIDTH + 3) + 7);
    let mut all = vec![T::default(); heads * head_stride];
    for (row, x) in rows.chunks_exact(WIDTH).enumerate() {
        let at = row / tokens * head_stride + row % tokens * token_stride;
        all[at..at + WIDTH].copy_from_slice(x);
    }
    (all, head_stride, token_stride)
}

/// Values that bf16 holds, and f16 too.
fn coarse(random: &mut Random, count: usize) -> Vec<f32> {
    random.gaussians(count).iter().map(|x| (x * 16.0).round() / 16.0).collect()
}

#[test]
fn orders_and_types_give_the_same_bits() {
    let mut random = Random::new(5);
    let (tokens, block) = (300, 7);
    let [keys, values] = [(); 2].map(|()| coarse(&mut random, HEADS * tokens * WIDTH));
    let queries = coarse(&mut random, QUERY_HEADS * block * WIDTH);
    let mut plain = cache();
    plain.append(0, &keys, &values).unwrap();
    let mut expected = vec![0.0; queries.len()];
    plain.attend(0, &queries, &mut expected).unwrap();
    let in_halves: Vec<f16> = expected.iter().map(|x| f16::from_f32(*x)).collect();

    // Appended in other orders.
    let mut by_token = cache();
    by_token.append(0, Rows::tokens_first(&tokens_first(&keys, HEADS)), &values).unwrap();
    let mut strided = cache();
    let halves: Vec<f16> = keys.iter().map(|x| f16::from_f32(*x)).collect();
    let (spread_keys, head, step) = spread(&halves, HEADS);
    // The last row ends where the slice ends.
    let end = head + (tokens - 1) * step + WIDTH;
    let brains: Vec<bf16> = values.iter().map(|x| bf16::from_f32(*x)).collect();
    let brains = tokens_first(&brains, HEADS);
    let spread_keys = Rows::strided(&spread_keys[..end], tokens, head, step);
    strided.append(0, spread_keys, Rows::tokens_first(&brains)).unwrap();
    for other in [&by_token, &strided] {
        assert_eq!(other.save(), plain.save());
    }

    // Asked and answered in other orders.
    let by_token = tokens_first(&queries, QUERY_HEADS);
    let mut output = vec![0.0; queries.len()];
    plain.attend(0, Rows::tokens_first(&by_token), RowsMut::tokens_first(&mut output)).unwrap();
    assert_eq!(bits(&output), bits(&tokens_first(&expected, QUERY_HEADS)));
    let brains: Vec<bf16> = queries.iter().map(|x| bf16::from_f32(*x)).collect();
    let mut output = vec![f16::ZERO; queries.len()];
    plain.attend(0, &brains, &mut output).unwrap();
    assert_eq!(output, in_halves);
    let mut output = vec![bf16::ZERO; queries.len()];
    let halves: Vec<f16> = queries.iter().map(|x| f16::from_f32(*x)).collect();
    plain.attend_with(0, &halves, &Attend::default().queries(block), &mut output).unwrap();
    assert!(output.iter().zip(&expected).all(|(x, y)| *x == bf16::from_f32(*y)));

    // Strides, and nothing written between the rows.
    let (spread_queries, head, step) = spread(&queries, QUERY_HEADS);
    let (mut output, ..) = spread(&vec![0.0; queries.len()], QUERY_HEADS);
    output.fill(9.0);
    let to = RowsMut::strided(&mut output, block, head, step);
    plain.attend(0, Rows::strided(&spread_queries, block, head, step), to).unwrap();
    for (row, x) in expected.chunks_exact(WIDTH).enumerate() {
        let at = row / block * head + row % block * step;
        assert_eq!(bits(&output[at..at + WIDTH]), bits(x));
        assert_eq!(output[at + WIDTH..at + WIDTH + 3], [9.0; 3]);
    }
    // One key/value head's queries.
    let mut part = vec![f16::ZERO; expected.len() / 2];
    let second = Attend::default().first_head(1);
    plain.attend_with(0, &queries[queries.len() / 2..], &second, &mut part).unwrap();
    assert_eq!(part, in_halves[in_halves.len() / 2..]);
}

#[test]
fn rows_that_do_not_fit_are_refused() {
    let mut some = cache();
    let rows = vec![0.5; HEADS * 10 * WIDTH];
    some.append(0, &rows, &rows).unwrap();
    let before = some.save();
    let strided = |tokens, head, step| Rows::strided(&rows, tokens, head, step);
    let (full, step) = (10 * WIDTH, WIDTH);
    let what = "values of strided rows";
    for (rows, error) in [
        (strided(10, full + 1, step), Error::Length { what, expected: 2 * full + 1, actual: 2 * full }),
        (strided(11, full, step), Error::Length { what, expected: 2 * full + step, actual: 2 * full }),
        (strided(10, usize::MAX, 1), Error::Length { what, expected: usize::MAX, actual: 2 * full }),
        (strided(usize::MAX, 1, usize::MAX), Error::Length { what, expected: usize::MAX, actual: 2 * full }),
    ] {
        assert_eq!(some.append(0, rows, rows), Err(error));
    }
    // Keys say how many tokens there are.
    let few = strided(9, full, step);
    let expected = Error::Length { what: "tokens of strided rows", expected: 10, actual: 9 };
    assert_eq!(some.append(0, &rows, few), Err(expected));
    let odd = Rows::tokens_first(&rows[..WIDTH]);
    assert!(matches!(some.append(0, odd, odd), Err(Error::Rows { what: "keys", .. })));
    assert_eq!(some.append(0, strided(0, 0, 0), Floats::F32(&[])), Ok(()));
    assert_eq!(some.save(), before);

    // A value is named by its head, token and channel, wherever it lies.
    let mut bad = rows.clone();
    bad[3 * HEADS * WIDTH + WIDTH + 5] = f32::NAN;
    let error = Error::Row { layer: 0, what: "values", head: 1, row: 3, channel: Some(5), finite: false };
    assert_eq!(some.append(0, &rows, Rows::tokens_first(&bad)), Err(error));
    assert_eq!(some.save(), before);

    // Outputs of another size, and strides that nothing explains.
    let queries = vec![0.1; QUERY_HEADS * 3 * WIDTH];
    let mut output = vec![f16::ZERO; QUERY_HEADS * 3 * WIDTH];
    let wrong = some.attend(0, &queries, &mut output[WIDTH..]);
    assert!(matches!(wrong, Err(Error::Rows { what: "output", each: Some(3), .. })), "{wrong:?}");
    let (head, step) = (3 * WIDTH, WIDTH);
    let far = RowsMut::strided(&mut output, 3, head + 1, step);
    assert!(matches!(some.attend(0, &queries, far), Err(Error::Length { .. })));
    let more = RowsMut::strided(&mut output, 2, head, step);
    assert!(matches!(some.attend(0, &queries, more), Err(Error::Length { expected: 3, actual: 2, .. })));
    let asked = Rows::strided(&queries, 3, head, step);
    assert_eq!(some.attend(0, asked, &mut output), Ok(()));
    let loaded = KvCache::load(&before, octaplex::Backend::detect()).unwrap();
    assert!(matches!(loaded.attend(0, asked, &mut output), Err(Error::Unsupported { .. })));
    assert!(some.attend_with(0, asked, &Attend::default().queries(0), &mut output).is_err());
    assert!(some.attend_with(0, asked, &Attend::default().queries(usize::MAX), &mut output).is_err());
}

/// Values at f16's end: their sum may round above it, and the output ends there.
#[test]
fn halves_end_at_the_largest() {
    let mut some = KvCache::builder(1, 1, WIDTH, 1000).keys("f16").values("int:bits=4").build().unwrap();
    let values: Vec<f32> = (0..200 * WIDTH).map(|i| if i % 3 == 0 { 60000.0 } else { 65000.0 }).collect();
    some.append(0, &vec![0.1; 200 * WIDTH], &values).unwrap();
    let (mut wide, mut output) = ([0.0; WIDTH], [f16::ZERO; WIDTH]);
    some.attend(0, &[0.1; WIDTH], &mut wide).unwrap();
    some.attend(0, &[0.1; WIDTH], &mut output).unwrap();
    assert!(output.iter().zip(wide).all(|(x, y)| x.is_finite() && *x == f16::from_f32(y.min(65504.0))));
}

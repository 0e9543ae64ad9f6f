//! Figures computed by hand, and slices that do not fit.
#![allow(clippy::unwrap_used)]

use octaplex_metrics::{AttentionErrors, Error, ExactHead, VectorErrors};

/// Two tokens of width 1 with values 0 and 1, a query at each; scores at √1 = 1 are logits.
fn head() -> ExactHead {
    ExactHead::new(&[1.0, 1.0], &[0, 1], &[0.0, 3f32.ln()], &[0.0, 1.0], 1).unwrap()
}

#[test]
fn queries_see_the_tokens_up_to_their_own() {
    let head = head();
    assert_eq!((head.queries(), head.weights(0), head.scores(0).len()), (2, &[1.0][..], 1));
    assert!((head.weights(1)[1] - 0.75).abs() < 1e-7 && (head.outputs()[1][0] - 0.75).abs() < 1e-7);
    assert!(head.weights(2).is_empty() && head.scores(2).is_empty());
}

#[test]
fn keys_are_measured_on_the_queries_chosen() {
    let (head, values) = (head(), [0.0, 1.0]);
    // The second query weighs both tokens alike: KL of (1/4, 3/4) to (1/2, 1/2), output 1/2 for 3/4.
    let scores = [0.0, 9.0, 0.0, 0.0];
    let kl = 0.25 * 0.5f64.ln() + 0.75 * 1.5f64.ln();
    let measured = |queries: &[usize]| {
        let mut errors = AttentionErrors::default();
        errors.add_keys(&head, &scores, &values, queries.iter().copied()).unwrap();
        errors
    };
    let second = measured(&[1]);
    assert!((second.kl() - kl).abs() < 1e-7 && (second.output_error() - 1.0 / 9.0).abs() < 1e-6);
    assert!((second.score_error() - 3f64.ln() / 2.0).abs() < 1e-7);
    // The first query is exact, and has one token: three pairs in all.
    let both = measured(&[0, 1]);
    assert!((both.kl() - kl / 2.0).abs() < 1e-7 && (both.score_error() - 3f64.ln() / 3.0).abs() < 1e-7);
    assert!((head.divergence(1, &scores[2..]).unwrap() - kl).abs() < 1e-7);
}

#[test]
fn values_are_measured_with_exact_weights() {
    let mut errors = AttentionErrors::default();
    errors.add_values(&head(), &[0.0, 0.75]).unwrap();
    errors.add_values(&head(), &[0.0, 0.0]).unwrap();
    assert!((errors.output_error() - 0.5).abs() < 1e-6);
    assert_eq!((errors.kl(), errors.score_error()), (0.0, 0.0));
}

#[test]
fn vectors_of_zeros_count() {
    let mut errors = VectorErrors::default();
    errors.add(&[0.0; 4], &[0.0, 0.0, 0.0, 2.0], 2).unwrap();
    assert_eq!((errors.vectors(), errors.distortion(), errors.cosine()), (2, 4.0, 0.5));
    assert_eq!(VectorErrors::default().cosine(), 0.0);
}

#[test]
fn what_does_not_fit_is_an_error_and_adds_nothing() {
    let nan = f32::NAN;
    let mut vectors = VectorErrors::default();
    assert!(matches!(
        vectors.add(&[1.0; 4], &[1.0; 3], 2),
        Err(Error::Length { expected: 4, actual: 3, .. })
    ));
    assert!(matches!(vectors.add(&[1.0; 4], &[1.0; 4], 3), Err(Error::Length { expected: 3, .. })));
    assert!(matches!(vectors.add(&[], &[], 0), Err(Error::Length { .. })));
    assert!(matches!(vectors.add(&[1.0; 2], &[1.0, nan], 2), Err(Error::NonFinite { index: 1, .. })));
    assert_eq!(vectors.vectors(), 0);

    let new = |queries: &[f32], positions: &[usize], keys: &[f32], values: &[f32]| {
        ExactHead::new(queries, positions, keys, values, 2).map(|_| ()).unwrap_err()
    };
    assert!(matches!(new(&[1.0; 2], &[0, 0], &[1.0; 2], &[1.0; 2]), Error::Length { what: "positions", .. }));
    assert!(matches!(
        new(&[1.0; 2], &[1], &[1.0; 2], &[1.0; 2]),
        Error::Length { expected: 1, actual: 2, .. }
    ));
    assert!(matches!(new(&[1.0; 2], &[0], &[1.0; 2], &[1.0; 4]), Error::Length { what: "values", .. }));
    assert!(matches!(new(&[1.0; 2], &[0], &[1.0, nan], &[1.0; 2]), Error::NonFinite { what: "keys", .. }));
    assert!(new(&[nan; 2], &[0], &[1.0; 2], &[1.0; 2]).to_string().contains("queries: value 0 is NaN"));

    let mut errors = AttentionErrors::default();
    let (head, values) = (head(), [0.0, 1.0]);
    assert!(errors.add_keys(&head, &[0.0; 3], &values, [0]).is_err());
    assert!(errors.add_keys(&head, &[0.0; 4], &values[..1], [0]).is_err());
    assert!(errors.add_keys(&head, &[0.0; 4], &values, [0, 2]).is_err());
    assert!(errors.add_keys(&head, &[0.0, 0.0, 0.0, nan], &values, [0, 1]).is_err());
    assert!(errors.add_values(&head, &[0.0]).is_err() && errors.add_values(&head, &[0.0, nan]).is_err());
    assert!(head.divergence(1, &[0.0]).is_err());
    assert_eq!((errors.kl(), errors.output_error()), (0.0, 0.0));
}

//! Tokens that come in pieces and at once.

use octaplex::{Backend, KvCache, LayerConfig};

#[test]
fn pieces_and_the_whole_are_accepted_alike() {
    const D: usize = 32;
    let rows = vec![0.25; 330 * D];
    let mut different = Vec::new();
    // Sinks, recent window, sliding window, rollback, capacity: too small, just enough, or one too few.
    for (sinks, recent, window, rollback, capacity) in [
        (0, 0, Some(64), 0, 64),
        (0, 0, Some(64), 0, 126),
        (0, 0, Some(64), 0, 127),
        (4, 0, Some(70), 10, 140),
        (4, 0, Some(70), 10, 146),
        (4, 64, Some(100), 0, 140),
        (4, 64, Some(100), 70, 190),
        (4, 64, Some(100), 70, 240),
        (4, 64, Some(1), 0, 132),
        (4, 64, Some(60), 50, 141),
        (4, 100, Some(30), 5, 168),
        (4, 64, None, 0, 400),
        (4, 64, None, 100, 400),
    ] {
        let mut config = LayerConfig::new(1, D, capacity);
        (config.sink_tokens, config.recent_window) = (sinks, recent);
        (config.sliding_window, config.max_rollback) = (window, rollback);
        let empty = KvCache::new([config], Backend::SCALAR).unwrap();
        for count in 1..330 {
            for piece in [1, 50, 64] {
                let mut whole = empty.fork();
                let whole_fits = whole.append(0, &rows[..count * D], &rows[..count * D]).is_ok();
                let mut pieces = empty.fork();
                let pieces_fit =
                    rows[..count * D].chunks(piece * D).all(|rows| pieces.append(0, rows, rows).is_ok());
                if whole_fits != pieces_fit {
                    different.push(format!("{sinks} {recent} {window:?} {rollback} {capacity}: {count} by {piece}: whole {whole_fits}, pieces {pieces_fit}"));
                }
            }
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
}

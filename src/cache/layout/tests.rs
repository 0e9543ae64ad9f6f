//! Tests that no two parts of a cache's memory share a byte.
#![allow(clippy::unwrap_used)] // tests fail by panicking

use super::*;
use crate::CodecSpec;
use crate::codebook::WIDTHS;
extern crate std;
use std::{vec, vec::Vec};

/// Returns layouts of every codec at every width, with every kind of centre, window and page.
fn layouts() -> impl Iterator<Item = Layout> {
    let varying = ["hqmq:r=6,med=3", "int:med=1"];
    let specs = CodecSpec::all().iter().map(|codec| codec.name).chain(varying);
    let windows = [(0, 0, 0, None), (4, 1, 64, Some(70)), (7, 70, 100, None)];
    specs.flat_map(move |spec| {
        let config = move |choice: usize| {
            let width = choice / 144;
            let mut config = LayerConfig::new(3, WIDTHS[width], 1000);
            config.value_dim = WIDTHS[(width + choice / 4 % 2) % WIDTHS.len()];
            config.keys = spec.parse().unwrap();
            // Also mix keys that vary in size with values that do not.
            config.values =
                if (choice / 8).is_multiple_of(2) { config.keys } else { CodecSpec::F16(Default::default()) };
            config.page = [64, 128][choice % 2];
            config.balance = (choice / 2).is_multiple_of(2);
            config.center = [Center::Off, Center::Page, Center::Prefix][choice / 16 % 3];
            (config.sink_tokens, config.recent_window, config.max_rollback, config.sliding_window) =
                windows[choice / 48 % 3];
            config.is_possible().then(|| Layout::new(&config))
        };
        (0..144 * WIDTHS.len()).filter_map(config)
    })
}

/// Checks that the pieces cover `whole` without gaps or overlaps, in order.
fn tile(pieces: impl IntoIterator<Item = Range<usize>>, whole: Range<usize>, layout: &Layout) {
    let end = pieces.into_iter().fold(whole.start, |end, piece| {
        assert_eq!(piece.start, end, "{piece:?} of {whole:?} in {layout:?}");
        piece.end
    });
    assert_eq!(end, whole.end, "{layout:?}");
}

#[test]
fn every_byte_of_the_front_has_one_use() {
    for layout in layouts() {
        let (sinks, ring) = (layout.sinks, layout.ring);
        let of_head = |head| {
            [
                layout.sink_keys(head, 0, sinks),
                layout.sink_values(head, 0, sinks),
                layout.window_keys(head, 0, ring),
                layout.window_values(head, 0, ring),
                layout.balance(head),
                layout.prefix(head),
            ]
        };
        tile((0..layout.heads).flat_map(of_head), 0..layout.front_bytes, &layout);
        for head in 0..layout.heads {
            let [sink_keys, sink_values, keys, values, ..] = of_head(head);
            tile((0..sinks).map(|token| layout.sink_keys(head, token, 1)), sink_keys, &layout);
            tile((0..sinks).map(|token| layout.sink_values(head, token, 1)), sink_values, &layout);
            tile((0..ring).map(|place| layout.window_keys(head, place, 1)), keys, &layout);
            tile((0..ring).map(|place| layout.window_values(head, place, 1)), values, &layout);
        }
    }
}

/// Checks that reading the parts of a page finds what was written, also after `pack` has moved them.
#[test]
fn every_byte_of_a_page_has_one_use() {
    let mut count = 0;
    for layout in layouts() {
        let mut page = vec![0; layout.page_bytes];
        let length = |rows: usize, head: usize| if layout.varies { rows - 5 * head - 1 } else { rows };
        let base = page.as_ptr() as usize;
        let place = |part: &[u8]| part.as_ptr() as usize - base..part.as_ptr() as usize - base + part.len();
        let (mut rows, mut extras) = (Vec::new(), Vec::new());
        for (head, parts) in layout.heads_mut(&mut page).enumerate() {
            let HeadMut { keys, values, lengths } = parts;
            rows.extend([place(keys.rows), place(values.rows)]);
            extras.extend([&*keys.centre, keys.norms, values.norms, lengths].map(place));
            let all = [keys.rows, values.rows, keys.centre, keys.norms, values.norms];
            for (number, part) in all.into_iter().enumerate() {
                part.fill((1 + 5 * head + number) as u8);
            }
            if layout.varies {
                let each = [layout.keys.rows, layout.values.rows].map(|rows| length(rows, head) as u32);
                lengths.copy_from_slice(&each.map(u32::to_le_bytes).concat());
            }
        }
        tile(rows.into_iter().chain(extras), layout.header..layout.page_bytes, &layout);
        layout.pack(&mut page);
        let packed = layout.page_length(&page);
        assert!(layout.is_sound(&page[..packed]), "{layout:?}");
        for head in 0..layout.heads {
            let Head { keys: key, values: value } = layout.head(&page[..packed], head);
            let (keys, values) = (&key.rows[layout.keys.lead()..], &value.rows[layout.values.lead()..]);
            let lengths = [layout.keys.rows, layout.values.rows].map(|rows| length(rows, head));
            assert_eq!([keys.len(), values.len()], lengths, "{layout:?}");
            for (number, part) in [keys, values, key.centre, key.norms, value.norms].into_iter().enumerate() {
                assert!(part.iter().all(|byte| usize::from(*byte) == 1 + 5 * head + number), "{layout:?}");
            }
        }
        count += 1;
    }
    assert!(count > 36 * WIDTHS.len() * 10, "{count} layouts");
}

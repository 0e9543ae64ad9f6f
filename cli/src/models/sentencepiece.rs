//! SentencePiece's byte-pair encoding as GGUF files carry it: pieces with scores, no list of merges.

use super::gguf::Gguf;
use crate::failure::{Failure, Result, first_line};
use candle_core::quantized::gguf_file::Value;
use std::collections::HashSet;
use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::Replace;
use tokenizers::{AddedToken, Tokenizer};

/// A token.
struct Piece<'a> {
    text: &'a str,
    score: f32,
    kind: i32,
}

/// Kinds of pieces: `tokenizer.ggml.token_type`.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;

/// A space within pieces.
const SPACE: &str = "\u{2581}";

/// Reads the tokenizer of a file whose `tokenizer.ggml.model` is "llama".
pub(crate) fn tokenizer(gguf: &Gguf) -> Result<Tokenizer> {
    let texts = gguf.list("tokenizer.ggml.tokens", Value::to_string)?;
    let scores = gguf.list("tokenizer.ggml.scores", Value::to_f32)?;
    let kinds = gguf.list("tokenizer.ggml.token_type", Value::to_i32)?;
    let counts = [texts.len(), scores.len(), kinds.len()];
    if counts != [texts.len(); 3] {
        return gguf.refuse(format!("tokens, scores and token_type of its tokenizer: {counts:?} of them"));
    }
    let prefix = gguf.optional_bool("tokenizer.ggml.add_space_prefix")?;
    if prefix != Some(false) {
        let key = "tokenizer.ggml.add_space_prefix";
        return gguf.refuse(format!("{key} is not false: a space before every text is not supported"));
    }
    let pieces = texts.into_iter().zip(scores).zip(kinds);
    let pieces: Vec<_> = pieces.map(|((text, score), kind)| Piece { text, score, kind }).collect();
    build(&pieces).or_else(|failure| gguf.refuse(format!("its tokenizer: {failure}")))
}

fn build(pieces: &[Piece]) -> Result<Tokenizer> {
    let failed = |error: tokenizers::Error| Failure(first_line(&error));
    let vocabulary: Vocab = pieces.iter().zip(0..).map(|(piece, id)| (piece.text.to_owned(), id)).collect();
    // Letters without a piece are spelt in bytes. If a byte had no token, text would get lost.
    let mut bytes = (0..=255).map(|byte| format!("<0x{byte:02X}>"));
    if let Some(byte) = bytes.find(|byte| !vocabulary.contains_key(byte)) {
        return Err(Failure(format!("no token {byte}")));
    }
    let model = BPE::builder().vocab_and_merges(vocabulary, merges(pieces)).byte_fallback(true);
    let mut tokenizer = Tokenizer::new(model.build().map_err(failed)?);
    let spaces = |from, to| Replace::new(from, to).map_err(failed);
    tokenizer.with_normalizer(Some(spaces(" ", SPACE)?)).map_err(failed)?;
    let decoders = [spaces(SPACE, " ")?.into(), ByteFallback::new().into(), Fuse::new().into()];
    tokenizer.with_decoder(Some(Sequence::new(decoders.into())));
    // These tokens are found in the original text, before anything is merged.
    let found = |kind: i32| {
        let pieces = pieces.iter().filter(move |piece| piece.kind == kind);
        pieces.map(move |piece| AddedToken::from(piece.text, kind == CONTROL).normalized(false))
    };
    tokenizer.add_special_tokens(found(CONTROL)).map_err(failed)?;
    tokenizer.add_tokens(found(USER_DEFINED)).map_err(failed)?;
    Ok(tokenizer)
}

/// Returns pairs in the order in which the crate `tokenizers` must merge them. SentencePiece joins the two neighbours whose
/// piece has the best score. So every cut of a piece in two makes a pair, with the score of the piece.
fn merges(pieces: &[Piece]) -> Vec<(String, String)> {
    let mut normal: Vec<_> = pieces.iter().filter(|piece| piece.kind == NORMAL).collect();
    normal.sort_by(|a, b| b.score.total_cmp(&a.score));
    let known: HashSet<_> = normal.iter().map(|piece| piece.text).collect();
    let cuts = normal
        .iter()
        .flat_map(|piece| piece.text.char_indices().skip(1).map(|(at, _)| piece.text.split_at(at)));
    let pairs = cuts.filter(|(left, right)| known.contains(left) && known.contains(right));
    pairs.map(|(left, right)| (left.to_owned(), right.to_owned())).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Pieces whose scores are not in the order of their ids, and bytes from 256 on.
    fn pieces() -> Vec<Piece<'static>> {
        let texts = ["<eos>", "a", "b", "c", SPACE, "ab", "bc", "abc", "\u{2581}a", "\n\n", "   ", "é"];
        let scores = [0.0, -9.0, -9.0, -9.0, -9.0, -3.0, -2.0, -4.0, -1.0, 0.0, 0.0, -9.0];
        let kind = |text: &str| match text {
            "<eos>" => CONTROL,
            "\n\n" | "   " => USER_DEFINED,
            _ => NORMAL,
        };
        let mut pieces: Vec<_> = texts
            .into_iter()
            .zip(scores)
            .map(|(text, score)| Piece { text, score, kind: kind(text) })
            .collect();
        pieces.extend((pieces.len()..256).map(|_| Piece { text: "", score: 0.0, kind: 5 }));
        pieces.extend((0..=255).map(|byte| {
            let text: &'static str = format!("<0x{byte:02X}>").leak();
            Piece { text, score: 0.0, kind: 6 }
        }));
        pieces
    }

    #[test]
    fn the_best_score_is_merged_first() {
        let tokenizer = build(&pieces()).unwrap();
        let tokens = |text: &str| tokenizer.encode_fast(text, false).unwrap().get_ids().to_vec();
        // bc before ab, and then the whole; a space goes with its a before both.
        assert_eq!(tokens("abc"), [7]);
        assert_eq!(tokens("ab"), [5]);
        assert_eq!(tokens("abcab"), [7, 5]);
        assert_eq!(tokens(" abc"), [8, 6]);
        assert_eq!(tokens("aab"), [1, 5]);
    }

    #[test]
    fn what_has_no_piece_is_spelt_in_bytes_and_comes_back() {
        let tokenizer = build(&pieces()).unwrap();
        let tokens = |text: &str| tokenizer.encode_fast(text, false).unwrap().get_ids().to_vec();
        assert_eq!(tokens("é"), [11]);
        assert_eq!(tokens("яa"), [256 + 0xd1, 256 + 0x8f, 1]);
        assert_eq!(tokens("a\n\n\nb"), [1, 9, 256 + 10, 2]);
        assert_eq!(tokens("a    b"), [1, 10, 4, 2]);
        assert_eq!(tokens("a<eos>b"), [1, 0, 2]);
        for text in ["", " abc  abc", "a    b", "日本 я 🙂\u{200d}\r\n\t\0", "a\n\n\nb"] {
            assert_eq!(tokenizer.decode(&tokens(text), true).unwrap(), text);
        }
        assert_eq!(tokenizer.decode(&[1, 0, 2], true).unwrap(), "ab");
        assert!(tokenizer.decode(&[256 + 0xd1], true).unwrap().ends_with('\u{fffd}'));
    }

    #[test]
    fn a_byte_without_a_token_is_named() {
        let mut pieces = pieces();
        pieces.remove(256 + 0x7f);
        assert!(build(&pieces).unwrap_err().0.contains("<0x7F>"));
    }
}

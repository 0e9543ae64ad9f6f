//! `encode`, `decode`, `score`: raw little-endian rows in, raw blocks or rows out, no header anywhere.

use crate::failure::{At, Failure, Result, build, fail, in_rows, parse_spec};
use crate::progress::Progress;
use crate::{files, npy};
use octaplex::{Backend, Codec, CodecSpec};
use std::path::Path;

/// A codec of the command line.
pub(crate) struct Coder {
    spec: CodecSpec,
    codec: Box<dyn Codec>,
}

/// (tokens, bytes) of each page.
type Pages = Vec<(usize, usize)>;

/// Rows that are worked on between two movements of the progress bar.
const CHUNK: usize = 1 << 14;

impl Coder {
    pub(crate) fn new(spec: &str, dim: usize, backend: Backend) -> Result<Self> {
        let parsed = parse_spec(spec)?;
        Ok(Self { spec: parsed, codec: build(spec, parsed, dim, backend)? })
    }

    /// f32 rows to blocks.
    pub(crate) fn encode(&self, input: &Path, output: &Path) -> Result<()> {
        let dim = self.codec.dim();
        let rows = read_rows(input, dim)?;
        let mut progress = Progress::new(rows.len() / dim);
        let mut blocks = Vec::with_capacity(rows.len() / dim * self.codec.block_bytes());
        for (index, chunk) in rows.chunks(CHUNK * dim).enumerate() {
            progress.doing("encode", chunk.len() / dim);
            let encoded = self.codec.encode_rows(chunk);
            blocks.extend(encoded.map_err(|error| in_rows(error, index * CHUNK, dim)).at(input.display())?);
        }
        files::write(output, &blocks)
    }

    /// Blocks to f32 rows.
    pub(crate) fn decode(&self, input: &Path, output: &Path) -> Result<()> {
        let (blocks, runs) = self.read_blocks(input)?;
        let count = runs.iter().map(|(rows, _)| rows).sum();
        let mut progress = Progress::new(count);
        let mut out = Vec::with_capacity(count * self.codec.dim() * 4);
        let (mut rest, mut before) = (&blocks[..], 0);
        for (rows, bytes) in runs {
            progress.doing("decode", rows);
            let (run, later) = rest.split_at(bytes);
            let decoded = self.codec.decode_rows(run);
            let decoded = decoded.map_err(|error| in_rows(error, before, self.codec.dim()));
            out.extend(decoded.at(input.display())?.iter().flat_map(|value| value.to_le_bytes()));
            (rest, before) = (later, before + rows);
        }
        files::write(output, &out)
    }

    /// Queries and blocks to scores, \[query]\[row].
    pub(crate) fn score(&self, query: &Path, input: &Path, output: &Path) -> Result<()> {
        let dim = self.codec.dim();
        let queries = read_rows(query, dim)?;
        let (blocks, runs) = self.read_blocks(input)?;
        let count: usize = runs.iter().map(|(rows, _)| rows).sum();
        // Checked alone, so that an error names the right file.
        let checked = self.codec.score_rows(&queries, &[]);
        checked.map_err(|error| in_rows(error, 0, dim)).at(query.display())?;
        let mut progress = Progress::new(count);
        let mut out = vec![0; queries.len() / dim * count * 4];
        let (mut rest, mut before) = (&blocks[..], 0);
        for (rows, bytes) in runs {
            progress.doing("score", rows);
            let (run, later) = rest.split_at(bytes);
            let scores = self.codec.score_rows(&queries, run);
            let scores = scores.map_err(|error| in_rows(error, before, dim)).at(input.display())?;
            for (query, scores) in scores.chunks_exact(rows).enumerate() {
                let start = (query * count + before) * 4;
                for (bytes, score) in out[start..].as_chunks_mut().0.iter_mut().zip(scores) {
                    *bytes = score.to_le_bytes();
                }
            }
            (rest, before) = (later, before + rows);
        }
        files::write(output, &out)
    }

    /// A file of blocks, and runs of whole pages that it consists of, as (rows, bytes).
    fn read_blocks(&self, input: &Path) -> Result<(Vec<u8>, Pages)> {
        let blocks = files::read(input)?;
        let (mut runs, mut rest) = (Vec::new(), &blocks[..]);
        while !rest.is_empty() {
            let Ok(run) = self.codec.split_rows(rest, CHUNK) else {
                fail!(
                    "{}: {} bytes are no whole number of blocks; a block of {} has {} bytes at width {}",
                    input.display(),
                    blocks.len(),
                    self.spec,
                    self.codec.block_bytes(),
                    self.codec.dim()
                );
            };
            rest = &rest[run.1..];
            runs.push(run);
        }
        Ok((blocks, runs))
    }
}

/// Rows of f32 from a raw file or an `.npy` one, `dim` values each.
fn read_rows(path: &Path, dim: usize) -> Result<Vec<f32>> {
    let bytes = files::read(path)?;
    if bytes.starts_with(npy::MAGIC) {
        let (shape, values) = npy::parse(&bytes).at(path.display())?;
        if shape.last() != Some(&dim) {
            fail!("{}: the array has shape {shape:?}, its last dimension is not {dim}", path.display());
        }
        return Ok(values);
    }
    match bytes.as_chunks() {
        (values, []) if values.len().is_multiple_of(dim) => {
            Ok(values.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
        }
        _ => Err(Failure(format!(
            "{}: {} bytes are no whole number of rows; a row of {dim} f32 values has {} bytes",
            path.display(),
            bytes.len(),
            4 * dim
        ))),
    }
}

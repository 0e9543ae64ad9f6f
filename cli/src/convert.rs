//! `encode`, `decode`, `score`: rows in, raw blocks or rows out. Blocks have no header; rows are raw little-endian f32,
//! or `.npy`, which tells its width.

use crate::codecs::{Codec, build, parse_spec};
use crate::failure::{At, Result, fail, in_rows};
use crate::input::raw_rows;
use crate::progress::Progress;
use crate::{files, npy};
use clap::Args;
use octaplex::Backend;
use std::path::Path;

/// Arguments that `encode`, `decode` and `score` share.
#[derive(Args)]
pub(crate) struct Coding {
    /// The codec, for example turboquant:bits=3
    spec: String,
    /// Width of a vector; an .npy file of rows tells its own
    #[arg(long, value_name = "D")]
    dim: Option<usize>,
    /// Instructions to use; `octaplex info` lists them
    #[arg(long, value_name = "NAME", value_parser = crate::backend::parse)]
    backend: Option<Backend>,
}

/// Rows, or queries, of one width.
struct Rows {
    dim: usize,
    values: Vec<f32>,
}

/// (tokens, bytes) of each page.
type Pages = Vec<(usize, usize)>;

/// Rows between two steps of the progress bar.
const CHUNK: usize = 1 << 14;

/// `encode`: rows to blocks.
pub(crate) fn encode(coding: &Coding, input: &Path, output: &Path) -> Result<()> {
    files::check(&[input.into()], &[output])?;
    let Rows { dim, values } = coding.read_rows(input)?;
    let codec = coding.codec(dim)?;
    let progress = Progress::new(values.len() / dim, "rows");
    let mut blocks = Vec::with_capacity(values.len() / dim * codec.block_bytes());
    progress.about("encode");
    for (index, chunk) in values.chunks(CHUNK * dim).enumerate() {
        let encoded = codec.encode_rows(chunk);
        blocks.extend(encoded.map_err(|error| in_rows(error, index * CHUNK, dim)).at(files::name(input))?);
        progress.step(chunk.len() / dim);
    }
    files::write(output, &blocks)
}

/// `decode`: blocks to rows.
pub(crate) fn decode(coding: &Coding, input: &Path, output: &Path) -> Result<()> {
    let Some(dim) = coding.dim else {
        fail!(
            "{}: blocks do not tell their width; give it with --dim, for example --dim 128",
            files::name(input)
        );
    };
    files::check(&[input.into()], &[output])?;
    let codec = coding.codec(dim)?;
    let (blocks, runs) = read_blocks(&coding.spec, &codec, input)?;
    let count = runs.iter().map(|(rows, _)| rows).sum();
    let progress = Progress::new(count, "rows");
    let mut out = Vec::with_capacity(count * dim * 4);
    let (mut rest, mut before) = (&blocks[..], 0);
    progress.about("decode");
    for (rows, bytes) in runs {
        let (run, later) = rest.split_at(bytes);
        let decoded = codec.decode_rows(run).map_err(|error| in_rows(error, before, dim));
        out.extend(decoded.at(files::name(input))?.iter().flat_map(|value| value.to_le_bytes()));
        (rest, before) = (later, before + rows);
        progress.step(rows);
    }
    write_rows(output, count, dim, out)
}

/// `score`: queries and blocks to scores, \[query]\[row].
pub(crate) fn score(coding: &Coding, query: &Path, input: &Path, output: &Path) -> Result<()> {
    files::check(&[query.into(), input.into()], &[output])?;
    let Rows { dim, values: queries } = coding.read_rows(query)?;
    let codec = coding.codec(dim)?;
    let (blocks, runs) = read_blocks(&coding.spec, &codec, input)?;
    let count: usize = runs.iter().map(|(rows, _)| rows).sum();
    // The queries are checked alone, so that an error names the right file.
    let checked = codec.score_rows(&queries, &[]);
    checked.map_err(|error| in_rows(error, 0, dim)).at(files::name(query))?;
    let progress = Progress::new(count, "rows");
    let mut out = vec![0; queries.len() / dim * count * 4];
    let (mut rest, mut before) = (&blocks[..], 0);
    progress.about("score");
    for (rows, bytes) in runs {
        let (run, later) = rest.split_at(bytes);
        let scores = codec.score_rows(&queries, run);
        let scores = scores.map_err(|error| in_rows(error, before, dim)).at(files::name(input))?;
        for (query, scores) in scores.chunks_exact(rows).enumerate() {
            let start = (query * count + before) * 4;
            for (bytes, score) in out[start..].as_chunks_mut().0.iter_mut().zip(scores) {
                *bytes = score.to_le_bytes();
            }
        }
        (rest, before) = (later, before + rows);
        progress.step(rows);
    }
    write_rows(output, queries.len() / dim, count, out)
}

impl Coding {
    fn codec(&self, dim: usize) -> Result<Codec> {
        build(&self.spec, parse_spec(&self.spec)?, dim, self.backend.unwrap_or_else(Backend::detect))
    }

    /// Reads rows of f32 from a raw file or an `.npy` one.
    fn read_rows(&self, path: &Path) -> Result<Rows> {
        // A wrong spec or width is reported first: that check needs no file.
        match self.dim {
            Some(dim) => drop(self.codec(dim)?),
            None => drop(parse_spec(&self.spec)?),
        }
        let place = files::name(path);
        let bytes = files::read(path)?;
        if bytes.starts_with(npy::MAGIC) {
            let (shape, values) = npy::parse(&bytes).at(files::name(path))?;
            return match (shape.last(), self.dim) {
                (Some(&dim), None) if dim > 0 => Ok(Rows { dim, values }),
                (Some(&dim), Some(wanted)) if dim == wanted && dim > 0 => Ok(Rows { dim, values }),
                (_, Some(wanted)) => {
                    fail!("{place}: the array has shape {shape:?}; --dim {wanted} wants [..., {wanted}]")
                }
                (_, None) => fail!("{place}: the array has shape {shape:?}; rows of vectors are expected"),
            };
        }
        let Some(dim) = self.dim else {
            fail!("{place}: raw f32 rows do not tell their width; give it with --dim, or give an .npy file");
        };
        Ok(Rows { dim, values: raw_rows(&bytes, dim).at(place)? })
    }
}

/// A file of blocks, read in runs of whole pages.
fn read_blocks(spec: &str, codec: &Codec, input: &Path) -> Result<(Vec<u8>, Pages)> {
    let blocks = files::read(input)?;
    let (mut runs, mut rest) = (Vec::new(), &blocks[..]);
    while !rest.is_empty() {
        let Ok(run) = codec.split_rows(rest, CHUNK) else {
            fail!(
                "{}: {} bytes are no whole number of blocks; a block of {} has {} bytes at width {}",
                files::name(input),
                blocks.len(),
                spec,
                codec.block_bytes(),
                codec.dim()
            );
        };
        rest = &rest[run.1..];
        runs.push(run);
    }
    Ok((blocks, runs))
}

/// Writes rows of f32, as `.npy` if the file's name ends so.
fn write_rows(output: &Path, rows: usize, columns: usize, values: Vec<u8>) -> Result<()> {
    match output.extension() {
        Some(extension) if extension == "npy" => files::write(output, &npy::file(rows, columns, &values)),
        _ => files::write(output, &values),
    }
}

//! Prepared queries of this library's codecs. They are f32 words in the caller's memory, so that
//! one buffer type serves every codec.
//!
//! ```text
//! word 0     tag: what follows
//! Float      dim floats
//! Int        scale, dim i16 of at most ±limit
//! sketched   scale, dim i8
//! ```

use super::scratch::with_scratch;
use crate::Error;
use crate::backend::Kernels;
use crate::rotation::Rotation;
use octaplex_arch::{IntQuery, SignQuery};

/// Queries that one pass over the blocks takes.
pub(crate) const QUERY_BATCH: usize = if cfg!(target_os = "none") { 8 } else { 64 };

/// The part of a query that rows are scored with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Body {
    /// Nothing but the sketch.
    None,
    /// Values in f32.
    Float,
    /// Integers of at most this magnitude, and a scale.
    Int(i16),
}

/// The contents of a codec's prepared queries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueryFormat {
    pub(crate) dim: usize,
    pub(crate) body: Body,
    pub(crate) sketch: bool,
}

const WRONG_KIND: Error = Error::Unsupported { why: "the query was prepared by a codec of another kind" };

impl QueryFormat {
    pub(crate) const fn new(dim: usize, body: Body) -> Self {
        Self { dim, body, sketch: false }
    }

    /// Returns this format with a sketch added.
    pub(crate) const fn sketched(self) -> Self {
        Self { sketch: true, ..self }
    }

    /// Returns the number of words in a query.
    pub(crate) const fn len(&self) -> usize {
        self.sketch_at() + if self.sketch { 1 + self.dim.div_ceil(4) } else { 0 }
    }

    /// Returns the word at which the sketch begins.
    const fn sketch_at(&self) -> usize {
        match self.body {
            Body::None => 1,
            Body::Float => 1 + self.dim,
            Body::Int(_) => 2 + self.dim.div_ceil(2),
        }
    }

    /// Returns the tag: "oq", then the kind of query. It detects queries of another codec.
    fn tag(&self) -> u32 {
        let body = match self.body {
            Body::None => 0x4000,
            Body::Float => 0,
            Body::Int(limit) => u32::from(limit.unsigned_abs()),
        };
        0x6f71_0000 | u32::from(self.sketch) << 15 | body
    }

    /// Checks that all queries have this format.
    pub(crate) fn check(&self, queries: &[&[f32]]) -> Result<(), Error> {
        let is_mine = |query: &&[f32]| {
            query.len() == self.len() && query.first().is_some_and(|tag| tag.to_bits() == self.tag())
        };
        if queries.iter().all(is_mine) { Ok(()) } else { Err(WRONG_KIND) }
    }

    /// Checks the arguments of a call that prepares a query.
    pub(crate) fn check_prepare(&self, q: &[f32], query: &[f32]) -> Result<(), Error> {
        Error::expect_length("values of a query", self.dim, q.len())?;
        Error::expect_length("words of a prepared query", self.len(), query.len())?;
        super::check_values(q, super::MAX_VALUE)
    }

    /// Rotates a query and writes it. `then` receives the rotated query and the words, to add a
    /// sketch.
    pub(crate) fn prepare(
        &self,
        (rotation, backend): (&Rotation, Kernels),
        q: &[f32],
        query: &mut [f32],
        then: impl Fn(&mut [f32], &mut [f32]),
    ) -> Result<(), Error> {
        self.check_prepare(q, query)?;
        with_scratch(self.dim, |rotated| {
            rotated.copy_from_slice(q);
            rotation.forward(backend, rotated);
            self.write(backend, rotated, query);
            then(rotated, query);
            Ok(())
        })
    }

    /// Writes a query that is already in the codec's basis.
    pub(crate) fn write(&self, backend: Kernels, rotated: &[f32], query: &mut [f32]) {
        query[0] = f32::from_bits(self.tag());
        match self.body {
            Body::None => {}
            Body::Float => query[1..][..self.dim].copy_from_slice(rotated),
            Body::Int(limit) => {
                let (scale, ints) = query[1..self.sketch_at()].split_at_mut(1);
                let ints: &mut [i16] = bytemuck::cast_slice_mut(ints);
                scale[0] = backend.quantize_query(rotated, limit, &mut ints[..self.dim]);
            }
        }
    }

    /// Writes a query in f32, and rotates it in place.
    pub(crate) fn write_rotated(&self, backend: Kernels, rotation: &Rotation, q: &[f32], query: &mut [f32]) {
        self.write(backend, q, query);
        rotation.forward(backend, &mut query[1..][..self.dim]);
    }

    /// Returns the sketch's scale and integers for writing.
    pub(crate) fn sketch_mut<'a>(&self, query: &'a mut [f32]) -> (&'a mut f32, &'a mut [i8]) {
        let (scale, ints) = query[self.sketch_at()..].split_at_mut(1);
        (&mut scale[0], &mut bytemuck::cast_slice_mut(ints)[..self.dim])
    }

    /// Calls `score` for batches of [`QUERY_BATCH`] queries in f32, each with its part of `scores`.
    pub(crate) fn in_float_batches(
        &self,
        queries: &[&[f32]],
        scores: &mut [f32],
        mut score: impl FnMut(&[&[f32]], &mut [f32]),
    ) -> Result<(), Error> {
        self.check(queries)?;
        each_batch(QUERY_BATCH, queries, scores, |queries, scores| {
            let mut batch: [&[f32]; QUERY_BATCH] = [&[]; QUERY_BATCH];
            for (slot, query) in batch.iter_mut().zip(queries) {
                *slot = &query[1..][..self.dim];
            }
            score(&batch[..queries.len()], scores);
        });
        Ok(())
    }

    /// Calls `score` for batches of queries in integers, each with its part of `scores`.
    pub(crate) fn in_int_batches(
        &self,
        queries: &[&[f32]],
        scores: &mut [f32],
        mut score: impl FnMut(&[IntQuery], &mut [f32]),
    ) -> Result<(), Error> {
        self.check(queries)?;
        // A page is scored with a single query so often that the array would show.
        if let ([query], false) = (queries, cfg!(target_os = "none")) {
            score(&[self.ints(query)], scores);
            return Ok(());
        }
        each_batch(QUERY_BATCH, queries, scores, |queries, scores| {
            let mut batch = [IntQuery { values: &[], scale: 0.0 }; QUERY_BATCH];
            batch.iter_mut().zip(queries).for_each(|(slot, query)| *slot = self.ints(query));
            score(&batch[..queries.len()], scores);
        });
        Ok(())
    }

    /// Returns the integers of a query that was checked.
    fn ints<'q>(&self, query: &'q [f32]) -> IntQuery<'q> {
        let [_, scale, ints @ ..] = query else { return IntQuery { values: &[], scale: 0.0 } };
        let ints: &[i16] = bytemuck::cast_slice(ints);
        IntQuery { values: ints.get(..self.dim).unwrap_or_default(), scale: *scale }
    }

    /// Calls `score` for batches of sketched queries, each with its part of `scores`.
    pub(crate) fn in_sketch_batches(
        &self,
        queries: &[&[f32]],
        scores: &mut [f32],
        mut score: impl FnMut(&[SignQuery], &mut [f32]),
    ) -> Result<(), Error> {
        self.check(queries)?;
        each_batch(QUERY_BATCH, queries, scores, |queries, scores| {
            let mut batch = [SignQuery { values: &[], scale: 0.0 }; QUERY_BATCH];
            for (slot, query) in batch.iter_mut().zip(queries) {
                let words = &query[self.sketch_at()..];
                let ints: &[i8] = bytemuck::cast_slice(&words[1..]);
                *slot = SignQuery { values: &ints[..self.dim], scale: words[0] };
            }
            score(&batch[..queries.len()], scores);
        });
        Ok(())
    }
}

/// Calls `score` for batches of `batch` queries, each with its part of `scores`.
pub(crate) fn each_batch<T>(
    batch: usize,
    queries: &[T],
    scores: &mut [f32],
    mut score: impl FnMut(&[T], &mut [f32]),
) {
    let rows = scores.len() / queries.len().max(1);
    let (mut queries, mut scores) = (queries.chunks(batch), scores.chunks_mut((batch * rows).max(1)));
    // Zipping the two would divide, and the panic of a division by zero would be linked into
    // microcontrollers.
    while let (Some(queries), Some(scores)) = (queries.next(), scores.next()) {
        score(queries, scores);
    }
}

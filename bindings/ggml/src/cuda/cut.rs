//! Computes graphs: cuts them at the operations on a cache, and hands the parts between them on.
//!
//! CUDA's stream is private, and its events are public. So events order the two streams, and the host never waits:
//!
//! ```text
//! CUDA's stream   part ──► event ┄┄┐                     ┌┄┄► next part
//!                                  ▼                     ┊
//! our stream                       cells ──► event ──────┘
//! ```

use super::cache::{Cache, Plan};
use super::cells::{Begun, Cells, Steps};
use super::registry::{Known, Wrapped, cache_of, seam, wrapped_of};
use super::seam::Seam;
use super::{Op, Status};
use crate::abi::{Backend, FAILED, Graph, SUCCESS, Tensor};
use crate::guarded;
use crate::instance::lock;
use core::ffi::{c_int, c_void};
use octaplex::gpu::cells::Settled;
use octaplex::gpu::{Device, Recording};
use std::sync::Arc;
use std::sync::atomic::Ordering;

type Record = extern "C" fn(*mut Backend, *mut c_void);

pub(super) extern "C" fn graph_compute(backend: *mut Backend, graph: *mut c_void) -> Status {
    let Some((seam, wrapped)) = seam().zip(wrapped_of(backend)) else { return FAILED };
    guarded(FAILED, || {
        // SAFETY: the host passes a graph of its own: an array of its nodes, and their number.
        let nodes = unsafe {
            let count = (seam.instance.host.functions.ggml_graph_n_nodes)(graph);
            let nodes = (seam.functions.ggml_graph_nodes)(graph);
            core::slice::from_raw_parts(nodes, usize::try_from(count).unwrap_or(0))
        };
        let mut cut = Cut {
            seam,
            wrapped: &wrapped,
            backend,
            graph,
            nodes,
            parts: 0,
            device: None,
            forked: false,
            behind: false,
            awaited: false,
            unwritten: None,
            recording: false,
        };
        let done = cut.known().and_then(|known| {
            let _turn = seam.gpus[wrapped.gpu].take_turn();
            cut.repeat(&known).transpose()
        });
        let done = done.unwrap_or_else(|| {
            let touched = touched(seam, nodes);
            if touched.is_empty() {
                return Ok((wrapped.own.graph_compute)(backend, graph));
            }
            let _turn = seam.gpus[wrapped.gpu].take_turn();
            cut.compute(&touched)
        });
        match done {
            Ok(status) => status,
            Err(why) => seam.instance.fail(&why),
        }
    })
}

fn tensors(op: &Tensor) -> impl Iterator<Item = &Tensor> {
    // SAFETY: sources are null or tensors of the host's.
    op.src.iter().filter_map(|source| unsafe { source.as_ref() }).chain([op])
}

/// Finds the operations on caches, each with its cache.
fn touched(seam: &Seam, nodes: &[*mut Tensor]) -> Vec<(usize, Arc<Cache>)> {
    let mut found = Vec::new();
    for (number, node) in nodes.iter().enumerate() {
        // SAFETY: nodes of a graph are tensors.
        let op = unsafe { &**node };
        if seam.op(op) != Op::Nothing
            && let Some(cache) = tensors(op).find_map(cache_of)
        {
            found.push((number, cache));
        }
    }
    found
}

struct Cut<'a> {
    seam: &'a Seam,
    wrapped: &'a Wrapped,
    backend: *mut Backend,
    graph: *mut c_void,
    nodes: &'a [*mut Tensor],
    /// Parts handed on so far.
    parts: u64,
    device: Option<Device>,
    /// Whether our stream follows CUDA's, and not the other way round.
    forked: bool,
    /// Whether CUDA's stream has got more work since then.
    behind: bool,
    /// Whether CUDA's next part reads what our stream writes.
    awaited: bool,
    /// The cache with rows that wait to be written.
    unwritten: Option<Arc<Cache>>,
    /// Whether work is recorded and not run.
    recording: bool,
}

/// The caches of a graph: each with its operations, and what these become.
struct Part {
    cache: Arc<Cache>,
    begun: Option<Begun>,
}

impl Cut<'_> {
    fn compute(&mut self, touched: &[(usize, Arc<Cache>)]) -> Result<Status, String> {
        let mut caches: Vec<Part> = Vec::new();
        let mut of_node = vec![usize::MAX; self.nodes.len()];
        for (node, cache) in touched {
            let known = caches.iter().position(|part| Arc::ptr_eq(&part.cache, cache));
            of_node[*node] = known.unwrap_or_else(|| {
                caches.push(Part { cache: cache.clone(), begun: None });
                caches.len() - 1
            });
        }
        for (number, part) in caches.iter_mut().enumerate() {
            let ops: Vec<usize> = (0..self.nodes.len()).filter(|node| of_node[*node] == number).collect();
            let (functions, backend) = (&self.seam.functions, self.backend);
            // SAFETY: the host computes this graph with this backend.
            let wait = || unsafe { (functions.ggml_backend_synchronize)(backend) };
            match part.cache.begin(self.seam, self.nodes, &ops, &wait)? {
                Plan::Cells(begun) => part.begun = Some(begun),
                Plan::Own => {
                    ops.iter().for_each(|node| of_node[*node] = usize::MAX);
                    self.point(&part.cache);
                }
            }
        }
        let done = match self.run_or_repeat(&caches, &of_node) {
            Ok(SUCCESS) => self.end(caches),
            Ok(status) => self.stopped(&caches, status),
            Err(why) => Err(why),
        };
        self.forget_inputs(touched);
        self.joined(done)
    }

    fn joined(&mut self, done: Result<Status, String>) -> Result<Status, String> {
        let joined = self.join();
        let status = done?;
        joined?;
        Ok(status)
    }

    /// Returns this graph if it is recorded.
    fn known(&self) -> Option<Arc<Known>> {
        let uid = self.uid()?;
        lock(&self.wrapped.recorded).last.clone().filter(|known| known.uid == uid)
    }

    /// Runs a recorded graph again, without a look at its nodes. Returns `None` if that does not suffice.
    fn repeat(&mut self, known: &Known) -> Result<Option<Status>, String> {
        for (cache, steps) in &known.caches {
            if !cache.begin_again(self.seam, steps)? {
                return Ok(None);
            }
        }
        let Some((cache, _)) = known.caches.first() else { return Ok(None) };
        let part = |(cache, steps): &(Arc<Cache>, Steps)| Part {
            cache: cache.clone(),
            begun: Some(Begun::Few(steps.clone())),
        };
        // SAFETY: the host computes the same graph, so its tensors are where they were. Caches keep their addresses.
        let done =
            self.fork(cache).and_then(|()| unsafe { known.recording.run() }.map_err(|why| why.to_string()));
        let done = done.and_then(|()| self.end(known.caches.iter().map(part).collect()));
        let mut inputs = lock(&self.seam.inputs);
        known.caches.iter().flat_map(|(_, steps)| steps.inputs()).for_each(|tensor| inputs.used(tensor));
        drop(inputs);
        self.joined(done).map(Some)
    }

    /// Points all tensors of the graph that view a cache at its f16 rows.
    fn point(&self, cache: &Arc<Cache>) {
        let own = |tensor: &Tensor| cache_of(tensor).is_some_and(|other| Arc::ptr_eq(&other, cache));
        for node in self.nodes {
            // SAFETY: nodes of a graph are tensors, and their sources null or tensors.
            let op = unsafe { &**node };
            let sources = op.src.iter().copied().filter(|source| !source.is_null());
            for tensor in sources.chain([*node]) {
                // SAFETY: as above.
                if own(unsafe { &*tensor }) {
                    cache.point(tensor);
                }
            }
        }
    }

    /// Runs a graph. From the second time on, a graph of a few tokens is one graph of CUDA's.
    fn run_or_repeat(&mut self, caches: &[Part], of_node: &[usize]) -> Result<Status, String> {
        let few = |part: &Part| match &part.begun {
            Some(Begun::Few(steps)) => Some((part.cache.clone(), steps.clone())),
            _ => None,
        };
        let all: Option<Vec<_>> = caches.iter().map(few).collect();
        let (Some(known), Some(uid)) = (all.filter(|all| !all.is_empty()), self.uid()) else {
            return self.run(caches, of_node);
        };
        let cache = known[0].0.clone();
        let recorded = &mut *lock(&self.wrapped.recorded);
        if let Some(known) = recorded.last.as_ref().filter(|known| known.uid == uid) {
            self.fork(&cache)?;
            // SAFETY: as in `repeat`.
            unsafe { known.recording.run() }.map_err(|why| why.to_string())?;
            return Ok(SUCCESS);
        }
        if recorded.seen != uid || recorded.failed || !self.can_record() {
            recorded.seen = uid;
            return self.run(caches, of_node);
        }
        recorded.last = None;
        match self.record(caches, of_node, &cache) {
            Ok(recording) => {
                self.fork(&cache)?;
                // SAFETY: as above.
                unsafe { recording.run() }.map_err(|why| why.to_string())?;
                recorded.last = Some(Arc::new(Known { uid, recording, caches: known }));
                Ok(SUCCESS)
            }
            Err(why) => {
                recorded.failed = true;
                self.seam
                    .instance
                    .say_once(&format!("tokens are computed in parts, which takes longer: {why}"));
                caches.iter().for_each(|part| part.cache.unrecord());
                (self.unwritten, self.awaited) = (None, false);
                self.run(caches, of_node)
            }
        }
    }

    /// Records a graph on our stream. CUDA's stream takes part, because events order it.
    fn record(
        &mut self,
        caches: &[Part],
        of_node: &[usize],
        cache: &Arc<Cache>,
    ) -> Result<Recording, String> {
        let device = self.device_of(cache)?;
        device.begin_recording().map_err(|why| why.to_string())?;
        (self.recording, self.forked) = (true, true);
        let done = self.join().and_then(|()| self.run(caches, of_node)).and_then(|status| {
            self.forked = false;
            self.fork(cache)?;
            if status == SUCCESS { Ok(()) } else { Err(format!("a part of it returns {status}")) }
        });
        let recording = device.end_recording().map_err(|why| why.to_string());
        (self.recording, self.forked) = (false, false);
        done?;
        recording
    }

    /// Returns the number of the graph, if the host tells one and all its streams can be ordered by events.
    fn uid(&self) -> Option<u64> {
        if !self.has_uid() || self.wrapped.events.iter().any(|event| event.is_null()) {
            return None;
        }
        // SAFETY: this version has the number there.
        Some(unsafe { (*self.graph.cast::<Graph>()).words[Graph::UID] }).filter(|uid| *uid != 0)
    }

    /// Returns whether all operations are of kinds that CUDA computes without waiting for the GPU.
    fn can_record(&self) -> bool {
        const KINDS: [&[u8]; 22] = [
            b"NONE",
            b"VIEW",
            b"RESHAPE",
            b"PERMUTE",
            b"TRANSPOSE",
            b"GET_ROWS",
            b"RMS_NORM",
            b"NORM",
            b"MUL",
            b"ADD",
            b"SUB",
            b"DIV",
            b"SCALE",
            b"MUL_MAT",
            b"ROPE",
            b"SET_ROWS",
            b"FLASH_ATTN_EXT",
            b"GLU",
            b"UNARY",
            b"CPY",
            b"CONT",
            b"DUP",
        ];
        // SAFETY: nodes of a graph are tensors.
        self.nodes.iter().all(|node| KINDS.contains(&self.seam.instance.host.op_name(unsafe { &**node })))
    }

    fn run(&mut self, caches: &[Part], of_node: &[usize]) -> Result<Status, String> {
        let mut start = 0;
        for node in 0..self.nodes.len() {
            let Some(part) = caches.get(of_node[node]) else { continue };
            let Some(begun) = &part.begun else { continue };
            let status = self.hand_on(start, node)?;
            if status != SUCCESS {
                return Ok(status);
            }
            start = node + 1;
            // SAFETY: nodes of a graph are tensors.
            let op = unsafe { &*self.nodes[node] };
            let cache = part.cache.clone();
            let status = match begun {
                Begun::Few(_) => {
                    if self.unwritten.as_ref().is_some_and(|other| !Arc::ptr_eq(other, &cache)) {
                        self.write_rest()?;
                    }
                    self.fork(&cache)?;
                    cache.with_cells(|cells| match self.seam.op(op) {
                        Op::SetRows => cells.write(op),
                        _ => cells.attend(op),
                    })?;
                    (self.awaited, self.unwritten) = (true, Some(cache));
                    SUCCESS
                }
                Begun::Area { settled, .. } => {
                    self.write_rest()?;
                    self.enter(node, &cache, settled)?;
                    self.join()?;
                    let status = self.in_area(node, &cache)?;
                    // The next layer opens while CUDA computes what lies between.
                    let next = (node + 1..self.nodes.len()).find(|next| of_node[*next] == of_node[node]);
                    if let Some(next) = next.filter(|_| status == SUCCESS && self.seam.op(op) == Op::Attend) {
                        self.enter(next, &cache, settled)?;
                    }
                    status
                }
            };
            if status != SUCCESS {
                return Ok(status);
            }
        }
        self.write_rest()?;
        self.hand_on(start, self.nodes.len())
    }

    fn write_rest(&mut self) -> Result<(), String> {
        self.unwritten.take().map_or(Ok(()), |cache| cache.with_cells(Cells::write_rest))
    }

    /// Opens the layer of an operation, if another one is open.
    fn enter(&mut self, node: usize, cache: &Arc<Cache>, settled: &Settled) -> Result<(), String> {
        // SAFETY: nodes of a graph are tensors.
        let op = unsafe { &*self.nodes[node] };
        let mut enters = false;
        cache.with_cells(|cells| {
            enters = cells.enters(op);
            Ok(())
        })?;
        if enters {
            self.fork(cache)?;
            cache.with_cells(|cells| cells.enter(op, settled))?;
        }
        Ok(())
    }

    /// Closes pages behind a graph.
    fn end(&mut self, caches: Vec<Part>) -> Result<Status, String> {
        for part in caches {
            let Some(begun) = part.begun else { continue };
            let mut idle = false;
            part.cache.with_cells(|cells| {
                idle = cells.is_idle(&begun);
                Ok(())
            })?;
            if !idle {
                self.fork(&part.cache)?;
                part.cache.with_cells(|cells| cells.end(begun))?;
                self.seam.gpus[part.cache.gpu].unread.store(true, Ordering::Relaxed);
            }
        }
        Ok(SUCCESS)
    }

    /// Loses the rows of caches after a part that failed.
    fn stopped(&self, caches: &[Part], status: Status) -> Result<Status, String> {
        for part in caches.iter().filter(|part| part.begun.is_some()) {
            let _ =
                part.cache.with_cells(|_| Err("a graph that writes this cache has failed; clear it".into()));
        }
        Ok(status)
    }

    /// Computes nodes on the host's own backend.
    fn hand_on(&mut self, first: usize, end: usize) -> Result<Status, String> {
        // SAFETY: nodes of a graph are tensors.
        let works = |node: &*mut Tensor| self.seam.op(unsafe { &**node }) != Op::Nothing;
        if !self.nodes[first..end].iter().any(works) {
            return Ok(SUCCESS);
        }
        self.write_rest()?; // CUDA's operations may use the memory of these rows
        // Only what was computed on compressed pages is read by CUDA's operations.
        if self.awaited {
            self.join()?;
        }
        self.behind = true;
        self.parts += 1;
        let number = self.parts;
        // SAFETY: the graph has these nodes. Its part lives until the call returns, and the part's nodes as long as the graph.
        unsafe {
            let mut part = (self.seam.functions.ggml_graph_view)(self.graph, first as c_int, end as c_int);
            if self.recording {
                // A node that differs from the last time is not captured by CUDA itself.
                let first = self.nodes[first];
                (*first).padding[0] = (*first).padding[0].wrapping_add(1);
            }
            part.words[Graph::UID] = if self.has_uid() && !self.recording {
                let uid = (*self.graph.cast::<Graph>()).words[Graph::UID];
                if uid == 0 { 0 } else { 1 << 63 | uid << 14 | number }
            } else {
                0
            };
            Ok((self.wrapped.own.graph_compute)(self.backend, (&raw mut part).cast()))
        }
    }

    fn has_uid(&self) -> bool {
        Graph::has_uid(&self.seam.instance.host.version_text)
    }

    /// Computes an operation of the host's on rows in the area.
    fn in_area(&mut self, node: usize, cache: &Arc<Cache>) -> Result<Status, String> {
        // SAFETY: nodes of a graph are tensors.
        let op = unsafe { &*self.nodes[node] };
        let pointers: Vec<*mut Tensor> =
            op.src.iter().copied().filter(|source| !source.is_null()).chain([self.nodes[node]]).collect();
        let mut moved: Vec<(*mut Tensor, *mut c_void)> = Vec::new();
        cache.with_cells(|cells| {
            for tensor in pointers {
                // SAFETY: sources are tensors.
                let about = unsafe { &*tensor };
                if moved.iter().all(|(other, _)| *other != tensor)
                    && cache_of(about).is_some_and(|other| Arc::ptr_eq(&other, cache))
                {
                    let place = cells.in_area(about).ok_or("an operation takes two layers")?;
                    moved.push((tensor, place));
                }
            }
            Ok(())
        })?;
        let old: Vec<*mut c_void> = moved
            .iter()
            // SAFETY: the tensors are those of the graph that the host computes now, on this thread.
            .map(|(tensor, place)| unsafe { core::mem::replace(&mut (**tensor).data, *place) })
            .collect();
        self.behind = true;
        // SAFETY: as above. A node that differs from the last time is not captured by CUDA.
        unsafe { (*self.nodes[node]).padding[0] = (*self.nodes[node]).padding[0].wrapping_add(1) };
        // SAFETY: the graph has this node; see `hand_on`.
        let status = unsafe {
            let mut part =
                (self.seam.functions.ggml_graph_view)(self.graph, node as c_int, node as c_int + 1);
            part.words[Graph::UID] = 0;
            (self.wrapped.own.graph_compute)(self.backend, (&raw mut part).cast())
        };
        for ((tensor, _), data) in moved.iter().zip(old) {
            // SAFETY: as above.
            unsafe { (**tensor).data = data };
        }
        Ok(status)
    }

    fn device_of(&mut self, cache: &Arc<Cache>) -> Result<Device, String> {
        if self.device.is_none() {
            cache.with_cells(|cells| {
                self.device = Some(cells.device().clone());
                Ok(())
            })?;
        }
        self.device.clone().ok_or_else(|| "a cache has lost its cells".into())
    }

    /// Orders our stream after CUDA's.
    fn fork(&mut self, cache: &Arc<Cache>) -> Result<(), String> {
        if self.forked && !self.behind {
            return Ok(());
        }
        self.device_of(cache)?;
        let Some(device) = &self.device else { return Ok(()) };
        match self.event(0) {
            // SAFETY: the backend has this function, and the event is of its device.
            Some((event, handle)) => unsafe {
                core::mem::transmute::<*const c_void, Record>(self.wrapped.own.events[0])(
                    self.backend,
                    event,
                );
                device.wait_for(handle).map_err(|why| why.to_string())?;
            },
            // SAFETY: as ggml-backend.h declares it.
            None => unsafe { (self.seam.functions.ggml_backend_synchronize)(self.backend) },
        }
        (self.forked, self.behind) = (true, false);
        Ok(())
    }

    /// Orders CUDA's stream after ours.
    fn join(&mut self) -> Result<(), String> {
        let Some(device) = self.device.as_ref().filter(|_| self.forked) else { return Ok(()) };
        match self.event(1) {
            // SAFETY: as in `fork`.
            Some((event, handle)) => unsafe {
                device.record(handle).map_err(|why| why.to_string())?;
                core::mem::transmute::<*const c_void, Record>(self.wrapped.own.events[1])(
                    self.backend,
                    event,
                );
            },
            None => device.synchronize().map_err(|why| why.to_string())?,
        }
        (self.forked, self.awaited) = (false, false);
        Ok(())
    }

    /// Returns one of the host's events, and CUDA's handle in it: `struct ggml_backend_event` is a device and a context.
    fn event(&self, number: usize) -> Option<(*mut c_void, usize)> {
        let event = self.wrapped.events[number];
        // SAFETY: the host made the event.
        (!event.is_null()).then(|| (event, unsafe { *event.cast::<usize>().add(1) }))
    }

    fn forget_inputs(&self, touched: &[(usize, Arc<Cache>)]) {
        let mut inputs = lock(&self.seam.inputs);
        for (node, _) in touched {
            // SAFETY: nodes of a graph are tensors, and their sources null or tensors.
            let op = unsafe { &*self.nodes[*node] };
            inputs.used(op.src[1]);
            // SAFETY: as above.
            if let Some(mask) = unsafe { op.src[3].as_ref() } {
                inputs.used(super::cells::origin_of(self.seam, mask));
            }
        }
    }
}

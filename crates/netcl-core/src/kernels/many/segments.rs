//! Where the elements of many tensors lie, and in what portions they are worked on.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::error::Result;
use crate::tensor::Tensor;

/// Elements of a chunk on the native CPU: enough to outweigh the start of a program, few enough to share evenly.
const CPU_CHUNK: usize = 1 << 12;

/// Tables kept on the device: an update's, a norm's, a scaling's, and one to spare.
const TABLES: usize = 4;

/// The tables of one kind of run, under what they depend on.
type Tables = (Vec<u64>, Arc<[Tensor]>);

/// One of many tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The number of elements.
    pub count: usize,
    /// Where its part of each row starts.
    pub flat: usize,
    /// Which set of run-time scalars it uses.
    pub set: usize,
}

impl Segment {
    /// A tensor without a part in rows, with the first set of scalars.
    pub fn of(count: usize) -> Segment {
        Segment { count, flat: 0, set: 0 }
    }
}

/// Many tensors' lengths, cut into chunks, with what is worth keeping between runs.
#[derive(Debug)]
pub struct Segments {
    all: Vec<Segment>,
    stride: usize,
    apart: bool,
    cpu: OnceLock<Arc<[Chunk]>>,
    tables: Mutex<Vec<Tables>>,
}

/// A part of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) segment: usize,
    pub(super) start: usize,
    pub(super) len: usize,
}

impl Chunk {
    /// Whether the other one starts where this one ends.
    pub(super) fn is_before(&self, next: &Chunk) -> bool {
        self.segment == next.segment && self.start + self.len == next.start
    }
}

impl Segments {
    /// Segments whose rows end with the last segment that has a part in them.
    pub fn new(all: Vec<Segment>) -> Segments {
        let stride = all.iter().map(|s| s.flat + s.count).max().unwrap_or(0);
        Segments::with_stride(all, stride)
    }

    /// Segments in rows of a given length: for a part of the tensors that have a place there.
    pub fn with_stride(all: Vec<Segment>, stride: usize) -> Segments {
        let mut spans: Vec<(usize, usize)> = all.iter().map(|s| (s.flat, s.flat + s.count)).collect();
        spans.sort_unstable();
        let apart = spans.is_sorted_by(|a, b| a.1 <= b.0) && spans.last().is_none_or(|last| last.1 <= stride);
        Segments { all, stride, apart, cpu: OnceLock::new(), tables: Mutex::default() }
    }

    /// Whether every segment has a part of the rows to itself.
    pub(super) fn rows_are_apart(&self) -> bool {
        self.apart
    }

    /// The segments.
    pub fn all(&self) -> &[Segment] {
        &self.all
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The length of a row.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// The elements of all segments.
    pub fn elements(&self) -> usize {
        self.all.iter().map(|s| s.count).sum()
    }

    /// How many sets of run-time scalars the segments name.
    pub fn sets(&self) -> usize {
        self.all.iter().map(|s| s.set + 1).max().unwrap_or(0)
    }

    /// The chunks of the native CPU.
    pub(super) fn cpu_chunks(&self) -> Arc<[Chunk]> {
        self.cpu.get_or_init(|| chunks(&self.all, CPU_CHUNK).into()).clone()
    }

    /// The tables made for a key before, or those that `make` uploads.
    pub(super) fn tables(&self, key: Vec<u64>, make: impl FnOnce() -> Result<Vec<Tensor>>) -> Result<Arc<[Tensor]>> {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = tables.iter().position(|(known, _)| *known == key) {
            return Ok(tables[at].1.clone());
        }
        let made: Arc<[Tensor]> = make()?.into();
        tables.truncate(TABLES - 1);
        tables.insert(0, (key, made.clone()));
        Ok(made)
    }
}

/// Cuts segments into chunks of at most `len` elements.
pub(super) fn chunks(segments: &[Segment], len: usize) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    for (segment, Segment { count, .. }) in segments.iter().enumerate() {
        chunks.extend((0..*count).step_by(len).map(|start| Chunk { segment, start, len: len.min(count - start) }));
    }
    chunks
}

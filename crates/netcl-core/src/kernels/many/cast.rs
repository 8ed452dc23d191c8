//! Many tensors in another dtype, in one launch: the parameters of a step under autocast.

use std::sync::{Arc, LazyLock};

use super::{Many, OP, Operands, Segment, Segments, Target};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernels::expr::Graph;
use crate::shape::Layout;
use crate::tensor::Tensor;

static CAST: LazyLock<Arc<Many>> = LazyLock::new(|| {
    let g = Graph::new();
    Many::new("cast", g.finish_with(&[g.input(0)], 2, 0), 2, 0, vec![Target::List(1)])
});

/// A tensor, and one of the same shape that takes its values in another dtype.
#[derive(Clone, Debug)]
pub struct CastPair {
    /// What is read.
    pub source: Tensor,
    /// What is written, whole.
    pub target: Tensor,
}

impl CastPair {
    /// A tensor with new memory for its values in another dtype, laid out as by [`Tensor::cast`].
    pub fn new(source: Tensor, dtype: DType) -> Result<CastPair> {
        let target = Tensor::uninit_beside(&[&source], source.shape().clone(), dtype)?;
        Ok(CastPair { source, target })
    }

    /// Whether [`cast`] takes it: floats of at most 32 bits, dense and in the same order in memory.
    pub fn is_dense(&self) -> bool {
        let CastPair { source, target } = self;
        source.shape() == target.shape()
            && [source, target].iter().all(|t| t.dtype().is_float() && t.dtype().accumulator() == DType::F32)
            && source.layout().is_contiguous() == target.layout().is_contiguous()
            && [source, target].iter().all(|t| t.layout().is_contiguous() || t.layout().is_channels_last())
    }
}

/// Writes all sources into their targets, with the bits of [`Tensor::cast`]: one launch, where that takes one for each tensor.
/// Sources have one dtype, targets have one, and all are on one device.
///
/// ```
/// use netcl_core::kernels::many::{CastPair, cast};
/// use netcl_core::{device::manager, dtype::DType, tensor::Tensor};
///
/// let queue = manager().cpu().queue;
/// let pair = |value| CastPair::new(Tensor::full(&queue, [2], DType::F32, value)?, DType::BF16);
/// let pairs = [pair(0.5)?, pair(-2.0)?];
/// cast(&pairs)?;
/// assert_eq!(pairs[1].target.cast(DType::F32)?.to_host::<f32>()?, [-2.0, -2.0]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
///
/// # Errors
/// For a pair that is not [dense](CastPair::is_dense).
pub fn cast(pairs: &[CastPair]) -> Result<()> {
    let mut lists: [Vec<Tensor>; 2] = Default::default();
    for pair in pairs {
        if !pair.is_dense() {
            let why = "casting many tensors in one launch needs dense floats in the order of their targets".to_owned();
            return Err(Error::Shape { op: OP, shape: pair.source.shape().clone(), why });
        }
        for (list, tensor) in lists.iter_mut().zip([&pair.source, &pair.target]) {
            // The order in memory, which both have.
            list.push(
                tensor.with_layout(Layout::contiguous([tensor.size()].into()).shifted(tensor.layout().offset()))?,
            );
        }
    }
    let segments = Segments::new(pairs.iter().map(|pair| Segment::of(pair.source.size())).collect());
    CAST.run(&segments, &Operands { lists: &[&lists[0], &lists[1]], flat: None, sets: &[Vec::new()] })
}

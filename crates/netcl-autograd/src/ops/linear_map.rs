//! Linear ops and their adjoints: each is the other's gradient, as often as one likes.

use std::sync::Arc;

use netcl_core::Result as CoreResult;
use netcl_core::tensor::Tensor as Raw;
use smallvec::smallvec;

use crate::error::Result;
use crate::graph::{Save, record};
use crate::tensor::Tensor;

type Map = Box<dyn Fn(&Raw) -> CoreResult<Raw> + Send + Sync>;

/// A linear op of one tensor and its adjoint.
pub(crate) struct LinearMap {
    names: [&'static str; 2],
    maps: [Map; 2],
}

impl LinearMap {
    /// A pair of names and the pair of ops: the op first, its adjoint second.
    pub(crate) fn new(
        names: [&'static str; 2],
        op: impl Fn(&Raw) -> CoreResult<Raw> + Send + Sync + 'static,
        adjoint: impl Fn(&Raw) -> CoreResult<Raw> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(LinearMap { names, maps: [Box::new(op), Box::new(adjoint)] })
    }

    /// The op applied to a tensor.
    #[track_caller]
    pub(crate) fn apply(self: &Arc<Self>, x: &Tensor) -> Result<Tensor> {
        self.side(0, x)
    }

    /// A result that is this op's, but for a constant: how affine ops, and ops that choose by value, are recorded.
    #[track_caller]
    pub(crate) fn record(self: &Arc<Self>, x: &Tensor, output: Raw) -> Result<Tensor> {
        self.recorded(0, x, output)
    }

    #[track_caller]
    fn side(self: &Arc<Self>, side: usize, x: &Tensor) -> Result<Tensor> {
        self.recorded(side, x, (self.maps[side])(x.raw())?)
    }

    #[track_caller]
    fn recorded(self: &Arc<Self>, side: usize, x: &Tensor, output: Raw) -> Result<Tensor> {
        record(self.names[side], &[x], output, Save::NOTHING, || {
            let map = self.clone();
            Box::new(move |_, upstream| Ok(smallvec![Some(map.side(1 - side, upstream)?)]))
        })
    }
}

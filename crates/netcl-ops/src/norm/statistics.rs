//! The statistics of channels as a thing of their own: what wrote a tensor may know them already.

use netcl_core::Result;
use netcl_core::backend::Queue;
use netcl_core::tensor::Tensor;

use super::batch::Planes;
use super::{cost, cpu, opencl};
use crate::dense::{Args, Job};

/// How the values of a channel are cut into parts, in the order of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// Values of a channel.
    pub(crate) count: usize,
    /// Values of each part but the last.
    pub(crate) per: usize,
}

impl Cut {
    /// One part.
    pub(crate) fn whole(count: usize) -> Cut {
        Cut { count, per: count.max(1) }
    }

    pub(crate) fn parts(self) -> usize {
        self.count.div_ceil(self.per)
    }

    /// Values of a part.
    pub(crate) fn length(self, part: usize) -> usize {
        self.per.min(self.count - part * self.per)
    }
}

/// The mean and the squared deviations of every channel (axis 1) of a tensor, as [`batch_norm_with`] takes them.
///
/// They come from a pass over the tensor ([`ChannelStatistics::of`]) or from the operation that wrote it, such as
/// [`conv2d_with_statistics`](crate::conv::conv2d_with_statistics). Kept as the means and squared deviations of parts, which are
/// merged without a loss of digits; never as sums of squares.
///
/// [`batch_norm_with`]: super::batch_norm_with
#[derive(Clone, Debug)]
pub struct ChannelStatistics {
    /// `[channels, parts, 2]`: mean and squared deviations, in the type of the computation.
    pub(crate) parts: Tensor,
    pub(crate) cut: Cut,
}

impl ChannelStatistics {
    /// Those of a tensor `[N, C, ..]`, in a pass over it.
    ///
    /// ```
    /// use netcl_core::{device::manager, tensor::Tensor};
    /// use netcl_ops::norm::{Affine, ChannelStatistics, batch_norm, batch_norm_with};
    ///
    /// let x = Tensor::from_host(&manager().cpu().queue, &[1.0f32, 10.0, 3.0, 30.0], [2, 2])?;
    /// let statistics = ChannelStatistics::of(&x)?;
    /// assert_eq!((statistics.channels(), statistics.count()), (2, 2));
    /// let given = batch_norm_with(&x, &statistics, Affine::default(), None, 1e-5)?;
    /// let found = batch_norm(&x, Affine::default(), None, 1e-5)?;
    /// assert_eq!(given.output.to_host::<f32>()?, found.output.to_host::<f32>()?);
    /// # Ok::<(), netcl_core::Error>(())
    /// ```
    pub fn of(x: &Tensor) -> Result<ChannelStatistics> {
        let op = "channel_statistics";
        let planes = Planes::new(op, x)?;
        let (x, planes) = planes.dense(x)?;
        match x.queue() {
            Queue::OpenCl(stream) if x.size() > 0 => opencl::statistics(stream, op, &x, planes),
            _ => {
                let parts = Tensor::uninit(x.queue(), [planes.channels, 1, 2], x.dtype().accumulator())?;
                if x.size() == 0 {
                    parts.fill(f64::NAN)?;
                } else {
                    let args = Args::default().read(&x).write(&parts);
                    let queue = x.queue().clone();
                    cpu::statistics::of(Job { name: op, queue, dtype: x.dtype(), cost: cost(&x, 1, 6), args }, planes)?;
                }
                Ok(ChannelStatistics { parts, cut: Cut::whole(planes.count()) })
            }
        }
    }

    /// Channels.
    pub fn channels(&self) -> usize {
        self.parts.shape()[0]
    }

    /// Values of each channel.
    pub fn count(&self) -> usize {
        self.cut.count
    }
}

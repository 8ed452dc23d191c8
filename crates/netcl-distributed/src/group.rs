//! Collectives over ranks: each rank has one tensor, and all ranks call the same thing together.

use std::sync::Arc;

use netcl_nn::autograd::{DType, RawTensor, Shape};

use crate::communicator::{Communicator, Piece};
use crate::error::{Error, Result};
use crate::reduction::{Accumulator, Reduce};

/// Ranks that make the same calls in the same order.
///
/// ```
/// use netcl_distributed::{Group, Reduce, Threads};
/// use netcl_nn::autograd::{RawTensor, manager};
///
/// let ranks: Vec<Group> = Threads::new(2).into_iter().map(Group::new).collect();
/// std::thread::scope(|scope| {
///     for group in &ranks {
///         scope.spawn(move || {
///             let x = RawTensor::from_host(&manager().cpu().queue, &[1.0f32, group.rank() as f32], [2]).unwrap();
///             group.all_reduce(&x, Reduce::Sum).unwrap();
///             assert_eq!(x.to_host::<f32>().unwrap(), [2.0, 1.0]);
///         });
///     }
/// });
/// ```
#[derive(Clone)]
pub struct Group {
    communicator: Arc<dyn Communicator>,
}

impl Group {
    /// The collectives of a communicator.
    pub fn new(communicator: impl Communicator + 'static) -> Group {
        Group { communicator: Arc::new(communicator) }
    }

    /// The number of this rank, from 0.
    pub fn rank(&self) -> usize {
        self.communicator.rank()
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.communicator.size()
    }

    /// Returns when all ranks have called it.
    ///
    /// # Errors
    /// If a rank is lost.
    pub fn barrier(&self) -> Result<()> {
        self.agree("barrier", "barrier")
    }

    /// Overwrites the tensor with the reduction over all ranks.
    ///
    /// # Errors
    /// If ranks disagree, or one is lost; the tensor is then as it was.
    pub fn all_reduce(&self, tensor: &RawTensor, op: Reduce) -> Result<()> {
        const CALL: &str = "all_reduce";
        self.agree(CALL, &format!("{CALL}({}) of {} {}", op.name(), tensor.dtype(), tensor.shape()))?;
        let mut bytes = download(tensor)?;
        self.all_reduce_bytes(CALL, &mut bytes, tensor.dtype(), op)?;
        Ok(tensor.write_bytes(&bytes, tensor.dtype())?)
    }

    /// Overwrites the tensor with the one of rank `root`.
    ///
    /// # Errors
    /// If ranks disagree, or one is lost.
    pub fn broadcast(&self, tensor: &RawTensor, root: usize) -> Result<()> {
        const CALL: &str = "broadcast";
        self.check_root(CALL, root)?;
        self.agree(CALL, &format!("{CALL} from rank {root} of {} {}", tensor.dtype(), tensor.shape()))?;
        let mut bytes = download(tensor)?;
        let own = if self.rank() == root { bytes.clone() } else { Vec::new() };
        self.communicator.exchange(CALL, &vec![&own[..]; self.size()], &mut |piece| {
            bytes[piece.offset..][..piece.bytes.len()].copy_from_slice(piece.bytes);
            Ok(())
        })?;
        Ok(tensor.write_bytes(&bytes, tensor.dtype())?)
    }

    /// The tensors of all ranks, in their order; their first axes may differ.
    ///
    /// # Errors
    /// If ranks disagree, or one is lost.
    pub fn all_gather(&self, tensor: &RawTensor) -> Result<Vec<RawTensor>> {
        const CALL: &str = "all_gather";
        let rest = Shape::from(tensor.shape().to_vec().get(1..).unwrap_or_default());
        self.agree(CALL, &format!("{CALL} of {} (..., {rest})", tensor.dtype()))?;
        let own = download(tensor)?;
        let mut gathered = vec![Vec::new(); self.size()];
        self.communicator.exchange(CALL, &vec![&own[..]; self.size()], &mut |piece: Piece<'_>| {
            gathered[piece.from].extend_from_slice(piece.bytes);
            Ok(())
        })?;
        let row = rest.nbytes(CALL, tensor.dtype())?.max(1);
        gathered
            .iter()
            .map(|bytes| {
                let mut shape = tensor.shape().to_vec();
                if let Some(first) = shape.first_mut() {
                    *first = bytes.len() / row;
                }
                Ok(RawTensor::from_host_bytes(tensor.queue(), bytes, tensor.dtype(), shape.into(), Default::default())?)
            })
            .collect()
    }

    /// Reduces elements that lie in the memory of the host.
    pub(crate) fn all_reduce_bytes(
        &self,
        call: &'static str,
        bytes: &mut [u8],
        dtype: DType,
        op: Reduce,
    ) -> Result<()> {
        let (size, rank) = (self.size(), self.rank());
        // Each rank reduces one part, and gives the result to all: no rank moves more than twice its own bytes.
        let length = (bytes.len() / dtype.size()).div_ceil(size).next_multiple_of(64) * dtype.size();
        let part = |k: usize| (k * length).min(bytes.len())..((k + 1) * length).min(bytes.len());
        let mut sums = Accumulator::new(call, op, dtype, part(rank).len() / dtype.size())?;
        let parts: Vec<&[u8]> = (0..size).map(|k| &bytes[part(k)]).collect();
        self.communicator.exchange(call, &parts, &mut |piece| {
            sums.add(piece.from == 0, piece.offset, piece.bytes);
            Ok(())
        })?;
        let mut own = vec![0; part(rank).len()];
        sums.write(size, &mut own);
        let starts: Vec<usize> = (0..size).map(|k| part(k).start).collect();
        self.communicator.exchange(call, &vec![&own[..]; size], &mut |piece| {
            bytes[starts[piece.from] + piece.offset..][..piece.bytes.len()].copy_from_slice(piece.bytes);
            Ok(())
        })
    }

    fn check_root(&self, call: &'static str, root: usize) -> Result<()> {
        if root < self.size() {
            return Ok(());
        }
        Err(Error::argument(call, format!("there is no rank {root}: the ranks are 0 to {}", self.size() - 1)))
    }

    /// An error on every rank unless all describe their call alike.
    fn agree(&self, call: &'static str, here: &str) -> Result<()> {
        let mut other = None;
        self.communicator.exchange(call, &vec![here.as_bytes(); self.size()], &mut |piece: Piece<'_>| {
            if piece.bytes != here.as_bytes() && other.is_none() {
                other = Some((piece.from, String::from_utf8_lossy(piece.bytes).into_owned()));
            }
            Ok(())
        })?;
        match other {
            None => Ok(()),
            Some((rank, there)) => Err(Error::Disagree { rank, own: self.rank(), there, here: here.to_owned() }),
        }
    }
}

fn download(tensor: &RawTensor) -> Result<Vec<u8>> {
    let mut bytes = vec![0; tensor.shape().nbytes("download", tensor.dtype())?];
    tensor.read_bytes(&mut bytes)?;
    Ok(bytes)
}

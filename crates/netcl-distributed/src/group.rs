//! Collectives over ranks: each rank has one tensor, and all ranks call the same thing together.

mod message;

use std::sync::{Arc, Mutex, PoisonError};

use message::{describe_rows, download, pack, unpack};
use netcl_core::host;
use netcl_nn::autograd::{DType, Queue, RawTensor};

use crate::communicator::{Alone, Call, Communicator, Piece};
use crate::error::{Error, Result};
use crate::reduction::{Accumulator, Reduce};
use crate::transfer::{on_host, rewrite};

/// Up to so many bytes of all ranks together every rank reduces everything itself: one exchange instead of two.
const SMALL: usize = 64 << 10;
/// Bytes that each rank reduces at a time: they and their sums stay in the caches, and no sums of a whole tensor are allocated.
const PART: usize = 1 << 20;
/// Host memory up to this many bytes is kept between calls: its pages need not be made again.
const KEPT: usize = 256 << 20;

/// Ranks that make the same calls in the same order.
///
/// Tensors may be on any device, of any dtype, with any strides. A call on some ranks that differs from the others' is an error on all of
/// them that shows both calls; so is a rank that ends or does not come within `NETCL_RANK_TIMEOUT`.
///
/// Collectives that overwrite their tensor may stand in a captured step, which repeats them; all ranks must record and replay alike.
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
    /// Where tensors lie while they are exchanged.
    scratch: Arc<Mutex<Vec<u8>>>,
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Group(rank {} of {}, {})", self.rank(), self.size(), self.kind())
    }
}

impl Group {
    /// The collectives of a communicator.
    pub fn new(communicator: impl Communicator + 'static) -> Group {
        Group { communicator: Arc::new(communicator), scratch: Arc::default() }
    }

    /// A group of one rank: every collective works, and waits for nobody.
    pub fn alone() -> Group {
        Group::new(Alone)
    }

    /// The number of this rank, from 0.
    pub fn rank(&self) -> usize {
        self.communicator.rank()
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.communicator.size()
    }

    /// What kind of ranks these are: "alone", "threads", "processes", "MPI".
    pub fn kind(&self) -> &'static str {
        self.communicator.kind()
    }

    /// Tells the other ranks that this one gives up: their calls end with an error that names this rank and the reason.
    pub fn abort(&self, reason: &str) {
        self.communicator.abort(reason);
    }

    /// Returns when all ranks have called it.
    ///
    /// # Errors
    /// If a rank is lost or calls something else.
    pub fn barrier(&self) -> Result<()> {
        self.agree("barrier", "barrier")
    }

    /// Overwrites the tensor with the reduction over all ranks.
    ///
    /// # Errors
    /// If ranks disagree, which leaves the tensor as it was, or one is lost, after which a part of a long one may be overwritten.
    pub fn all_reduce(&self, tensor: &RawTensor, op: Reduce) -> Result<()> {
        self.in_place("all_reduce", &[tensor], move |group, tensors| {
            group.reduce_to("all_reduce", &tensors[0], op, None)
        })
    }

    /// Overwrites the tensor of rank `root` with the reduction over all ranks; the others keep theirs.
    ///
    /// # Errors
    /// If ranks disagree, which leaves the tensor as it was, or one is lost, after which a part of a long one may be overwritten.
    pub fn reduce(&self, tensor: &RawTensor, op: Reduce, root: usize) -> Result<()> {
        self.check_root("reduce", root)?;
        self.in_place("reduce", &[tensor], move |group, tensors| group.reduce_to("reduce", &tensors[0], op, Some(root)))
    }

    /// Overwrites the tensor with the one of rank `root`.
    ///
    /// # Errors
    /// If ranks disagree, or one is lost.
    pub fn broadcast(&self, tensor: &RawTensor, root: usize) -> Result<()> {
        const NAME: &str = "broadcast";
        self.check_root(NAME, root)?;
        self.in_place(NAME, &[tensor], move |group, tensors| {
            let tensor = &tensors[0];
            let text = format!("{NAME} from rank {root} of {} {}", tensor.dtype(), tensor.shape());
            let call = Call { name: NAME, text: &text };
            group.with_scratch(NAME, tensor.shape().nbytes(NAME, tensor.dtype())?, |bytes| {
                if group.rank() == root {
                    tensor.read_bytes(bytes)?;
                    return group.communicator.exchange(&call, &vec![&*bytes; group.size()], &mut |_| Ok(()));
                }
                group.communicator.exchange(&call, &vec![&[][..]; group.size()], &mut |piece| match piece.from {
                    from if from == root => place(NAME, bytes, &piece),
                    _ => Ok(()),
                })?;
                Ok(tensor.write_bytes(bytes, tensor.dtype())?)
            })
        })
    }

    /// The tensors of all ranks, in their order; their first axes may differ.
    ///
    /// # Errors
    /// If ranks disagree, or one is lost.
    pub fn all_gather(&self, tensor: &RawTensor) -> Result<Vec<RawTensor>> {
        const NAME: &str = "all_gather";
        let (own, text) = (pack(NAME, tensor)?, format!("{NAME} of {}", describe_rows(tensor)));
        self.collect(&Call { name: NAME, text: &text }, &vec![&own[..]; self.size()], tensor.queue())
    }

    /// On rank `root` the tensors of all ranks, in their order, of which the first axes may differ; none on the others.
    ///
    /// # Errors
    /// If ranks disagree, or one is lost.
    pub fn gather(&self, tensor: &RawTensor, root: usize) -> Result<Option<Vec<RawTensor>>> {
        const NAME: &str = "gather";
        self.check_root(NAME, root)?;
        let text = format!("{NAME} to rank {root} of {}", describe_rows(tensor));
        let (own, mut parts) = (pack(NAME, tensor)?, vec![&[][..]; self.size()]);
        parts[root] = &own;
        let gathered = self.collect(&Call { name: NAME, text: &text }, &parts, tensor.queue())?;
        Ok((self.rank() == root).then_some(gathered))
    }

    /// The tensor that rank `root` gives to this one, on a queue of this rank's choice. `root` has one tensor for every rank, of any shapes
    /// and dtypes; the others give none.
    ///
    /// # Errors
    /// If `root` does not have as many tensors as there are ranks, ranks disagree, or one is lost.
    pub fn scatter(&self, parts: &[RawTensor], queue: &Queue, root: usize) -> Result<RawTensor> {
        const NAME: &str = "scatter";
        self.check_root(NAME, root)?;
        if self.rank() == root {
            self.check_parts(NAME, parts)?;
        }
        let packed: Vec<Vec<u8>> = match self.rank() == root {
            true => parts.iter().map(|part| pack(NAME, part)).collect::<Result<_>>()?,
            false => vec![Vec::new(); self.size()],
        };
        let slices: Vec<&[u8]> = packed.iter().map(Vec::as_slice).collect();
        let text = format!("{NAME} from rank {root}");
        let mut received = self.collect(&Call { name: NAME, text: &text }, &slices, queue)?;
        received.pop().ok_or_else(|| foreign(NAME, root, "gave nothing"))
    }

    /// The reduction over all ranks of the tensors that they give to this one: `parts[k]` of every rank goes to rank `k`.
    ///
    /// # Errors
    /// If there are not as many tensors as ranks or they have several dtypes, ranks disagree, or one is lost.
    pub fn reduce_scatter(&self, parts: &[RawTensor], op: Reduce) -> Result<RawTensor> {
        const NAME: &str = "reduce_scatter";
        self.check_parts(NAME, parts)?;
        let (own, dtype) = (&parts[self.rank()], parts[0].dtype());
        let shapes: Vec<String> = parts.iter().map(|part| part.shape().to_string()).collect();
        let text = format!("{NAME}({}) of {dtype} {}", op.name(), shapes.join(", "));
        let bytes: Vec<Vec<u8>> = parts.iter().map(|part| download(NAME, part)).collect::<Result<_>>()?;
        let slices: Vec<&[u8]> = bytes.iter().map(Vec::as_slice).collect();
        let mut sum = host::filled(NAME, slices[self.rank()].len(), 0u8)?;
        let mut sums = Accumulator::new(NAME, op, dtype, own.size())?;
        self.reduce_part(&Call { name: NAME, text: &text }, &slices, &mut sums, &mut sum)?;
        let (shape, options) = (own.shape().clone(), Default::default());
        Ok(RawTensor::from_host_bytes(own.queue(), &sum, dtype, shape, options)?)
    }

    /// What every rank gives to this one, in the order of ranks: `parts[k]` of every rank goes to rank `k`. First axes may differ.
    ///
    /// # Errors
    /// If there are not as many tensors as ranks or they differ in more than the first axis, ranks disagree, or one is lost.
    pub fn all_to_all(&self, parts: &[RawTensor]) -> Result<Vec<RawTensor>> {
        const NAME: &str = "all_to_all";
        self.check_parts(NAME, parts)?;
        let rows = describe_rows(&parts[0]);
        if let Some(other) = parts.iter().map(describe_rows).find(|other| *other != rows) {
            return Err(Error::argument(NAME, format!("tensors of {rows} and {other}; only first axes may differ")));
        }
        let packed: Vec<Vec<u8>> = parts.iter().map(|part| pack(NAME, part)).collect::<Result<_>>()?;
        let slices: Vec<&[u8]> = packed.iter().map(Vec::as_slice).collect();
        let text = format!("{NAME} of {rows}");
        self.collect(&Call { name: NAME, text: &text }, &slices, parts[0].queue())
    }

    /// Work that reads and overwrites tensors: one step of the host, which a captured program repeats.
    pub(crate) fn in_place(
        &self,
        call: &'static str,
        tensors: &[&RawTensor],
        work: impl Fn(&Group, &[RawTensor]) -> Result<()> + Send + Sync + 'static,
    ) -> Result<()> {
        let Some(first) = tensors.first() else { return work(self, &[]) };
        let group = self.clone();
        on_host(call, first.queue(), &[], tensors, move |_, tensors| work(&group, tensors))
    }

    fn reduce_to(&self, name: &'static str, tensor: &RawTensor, op: Reduce, root: Option<usize>) -> Result<()> {
        let to = root.map_or_else(String::new, |root| format!(" to rank {root}"));
        let text = format!("{name}({}){to} of {} {}", op.name(), tensor.dtype(), tensor.shape());
        self.reduce_in_windows(&Call { name, text: &text }, tensor, op, root)
    }

    /// Reduces a tensor window by window: while ranks exchange one, the next comes down from the device and the last goes up.
    fn reduce_in_windows(&self, call: &Call<'_>, tensor: &RawTensor, op: Reduce, root: Option<usize>) -> Result<()> {
        let (dtype, total) = (tensor.dtype(), tensor.shape().nbytes(call.name, tensor.dtype())?);
        let window = PART * self.size();
        if total == 0 {
            return self.agree(call.name, call.text);
        }
        let writes = root.is_none_or(|root| root == self.rank());
        self.with_scratch(call.name, total.min(window), |scratch| {
            rewrite(tensor, scratch, writes, |bytes| self.reduce_bytes(call, bytes, total, dtype, op, root))
        })
    }

    /// Lends host memory; what it holds is of no use.
    fn with_scratch<T>(
        &self,
        call: &'static str,
        length: usize,
        work: impl FnOnce(&mut [u8]) -> Result<T>,
    ) -> Result<T> {
        let lock = || self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        // Taken out, so that calls of several threads do not wait for each other.
        let mut bytes = std::mem::take(&mut *lock());
        if bytes.len() < length {
            bytes = host::filled(call, length, 0)?;
        }
        let result = work(&mut bytes[..length]);
        if bytes.len() <= KEPT {
            *lock() = bytes;
        }
        result
    }

    /// Reduces the elements of a tensor, whatever its shape: to other ranks the same call as [`Group::all_reduce_bytes`].
    pub(crate) fn all_reduce_flat(&self, call: &'static str, tensor: &RawTensor, op: Reduce) -> Result<()> {
        let text = described(call, op, tensor.size(), tensor.dtype());
        self.reduce_in_windows(&Call { name: call, text: &text }, tensor, op, None)
    }

    /// Reduces elements that lie in the memory of the host.
    pub(crate) fn all_reduce_bytes(
        &self,
        call: &'static str,
        bytes: &mut [u8],
        dtype: DType,
        op: Reduce,
    ) -> Result<()> {
        let text = described(call, op, bytes.len() / dtype.size(), dtype);
        let (call, total) = (Call { name: call, text: &text }, bytes.len());
        if total == 0 {
            // Ranks that have nothing to give must still agree.
            return self.agree(call.name, call.text);
        }
        let mut windows = bytes.chunks_mut(PART * self.size());
        windows.try_for_each(|window| self.reduce_bytes(&call, window, total, dtype, op, None))
    }

    /// Reduces a window of `total` bytes on all ranks, or on `root`, whose bytes alone are overwritten then.
    fn reduce_bytes(
        &self,
        call: &Call<'_>,
        window: &mut [u8],
        total: usize,
        dtype: DType,
        op: Reduce,
        root: Option<usize>,
    ) -> Result<()> {
        let (size, rank) = (self.size(), self.rank());
        if total * size <= SMALL && root.is_none() {
            let own = window.to_vec();
            let mut sums = Accumulator::new(call.name, op, dtype, window.len() / dtype.size())?;
            return self.reduce_part(call, &vec![&own[..]; size], &mut sums, window);
        }
        // Each rank reduces one part, and gives the result to all: no rank moves more than twice its own bytes.
        let length = (window.len() / dtype.size()).div_ceil(size).next_multiple_of(64) * dtype.size();
        let part = |k: usize| (k * length).min(window.len())..((k + 1) * length).min(window.len());
        let parts: Vec<&[u8]> = (0..size).map(|k| &window[part(k)]).collect();
        let mut own = vec![0; part(rank).len()];
        let mut sums = Accumulator::new(call.name, op, dtype, own.len() / dtype.size())?;
        self.reduce_part(call, &parts, &mut sums, &mut own)?;
        let ranges: Vec<_> = (0..size).map(part).collect();
        let mut results = vec![&own[..]; size];
        if let Some(root) = root {
            results.iter_mut().enumerate().filter(|(to, _)| *to != root).for_each(|(_, part)| *part = &[]);
        }
        self.communicator.exchange(call, &results, &mut |piece| match root {
            Some(root) if root != rank => Ok(()),
            _ => place(call.name, &mut window[ranges[piece.from].clone()], &piece),
        })
    }

    /// Gives a part to every rank, and reduces those that this one is given; `sums` may be longer.
    fn reduce_part(&self, call: &Call<'_>, parts: &[&[u8]], sums: &mut Accumulator, out: &mut [u8]) -> Result<()> {
        self.communicator.exchange(call, parts, &mut |piece| {
            check_piece(call.name, out.len(), &piece)?;
            sums.add(piece.from == 0, piece.offset, piece.bytes);
            Ok(())
        })?;
        sums.write(self.size(), out);
        Ok(())
    }

    /// Exchanges packed tensors: those that this rank was given, in the order of ranks.
    fn collect(&self, call: &Call<'_>, parts: &[&[u8]], queue: &Queue) -> Result<Vec<RawTensor>> {
        let mut received = vec![Vec::new(); self.size()];
        self.communicator.exchange(call, parts, &mut |piece: Piece<'_>| {
            let message: &mut Vec<u8> = &mut received[piece.from];
            if piece.offset == 0 {
                // How much it is, the other rank says.
                *message = host::with_capacity(call.name, piece.total)?;
            }
            if piece.offset != message.len() || piece.bytes.len() > piece.total - piece.offset.min(piece.total) {
                return Err(foreign(call.name, piece.from, "gave pieces in a wrong order"));
            }
            message.extend_from_slice(piece.bytes);
            Ok(())
        })?;
        let given = received.iter().enumerate().filter(|(_, message)| !message.is_empty());
        given.map(|(from, message)| unpack(call.name, queue, from, message)).collect()
    }

    fn check_root(&self, call: &'static str, root: usize) -> Result<()> {
        if root < self.size() {
            return Ok(());
        }
        Err(Error::argument(call, format!("there is no rank {root}: the ranks are 0 to {}", self.size() - 1)))
    }

    /// One tensor for each rank, all of one dtype.
    fn check_parts(&self, call: &'static str, parts: &[RawTensor]) -> Result<()> {
        if parts.len() != self.size() {
            let what = format!("{} tensors for {} ranks; give one for each", parts.len(), self.size());
            return Err(Error::argument(call, what));
        }
        let dtype = parts[0].dtype();
        match parts.iter().find(|part| part.dtype() != dtype) {
            None => Ok(()),
            Some(other) => {
                Err(Error::argument(call, format!("tensors of {dtype} and {}; use one dtype", other.dtype())))
            }
        }
    }

    /// An error on every rank unless all describe their call alike.
    pub(crate) fn agree(&self, call: &'static str, here: &str) -> Result<()> {
        let call = Call { name: call, text: here };
        self.communicator.exchange(&call, &vec![&[][..]; self.size()], &mut |_| Ok(()))
    }
}

/// A reduction of so many elements, as ranks compare it.
fn described(call: &str, op: Reduce, count: usize, dtype: DType) -> String {
    format!("{call}({}) of {count} {dtype}", op.name())
}

/// A communicator that does not do what it should.
fn foreign(call: &'static str, from: usize, what: &str) -> Error {
    Error::argument(call, format!("rank {from} {what}; do all ranks run the same version of netcl?"))
}

/// Whether a piece belongs to a part of so many bytes.
fn check_piece(call: &'static str, length: usize, piece: &Piece<'_>) -> Result<()> {
    let end = piece.offset.checked_add(piece.bytes.len());
    if piece.total == length && end.is_some_and(|end| end <= length) {
        return Ok(());
    }
    Err(foreign(call, piece.from, &format!("gave {} bytes instead of {length}", piece.total)))
}

fn place(call: &'static str, out: &mut [u8], piece: &Piece<'_>) -> Result<()> {
    check_piece(call, out.len(), piece)?;
    out[piece.offset..][..piece.bytes.len()].copy_from_slice(piece.bytes);
    Ok(())
}

//! Dropout whose mask is never stored: forward and backward compute it from the seed and the place of its first random block.

pub(crate) mod cpu;
mod opencl;

use std::sync::Arc;

use netcl_core::backend::Queue;
use netcl_core::kernels::launch::{self, Cost, Launch, Scalar, Slot};
use netcl_core::random::{Generator, blocks_for, check_own_generator, reserve_default, reserve_each_run};
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};

/// Where the random numbers of a mask begin: all that forward and backward have to agree on.
///
/// ```
/// use netcl_core::random::Generator;
/// use netcl_ops::dropout::MaskPlace;
///
/// let mut generator = Generator::new(3);
/// let place = MaskPlace::from(generator.reserve_words(100));
/// assert_eq!((place.seed(), place.offset()), (3, 0));
/// ```
#[derive(Clone, Debug)]
pub struct MaskPlace {
    seed: Word,
    offset: Word,
}

#[derive(Clone, Debug)]
enum Word {
    Fixed(u64),
    Slot(Arc<Slot>),
}

impl Word {
    fn get(&self) -> u64 {
        match self {
            Word::Fixed(word) => *word,
            Word::Slot(slot) => slot.get_integer(),
        }
    }

    fn scalar(&self) -> Scalar {
        match self {
            Word::Fixed(word) => Scalar::U64(*word),
            Word::Slot(slot) => Scalar::SlotU64(slot.clone()),
        }
    }
}

impl From<Generator> for MaskPlace {
    fn from(generator: Generator) -> Self {
        MaskPlace { seed: Word::Fixed(generator.seed), offset: Word::Fixed(generator.offset) }
    }
}

impl MaskPlace {
    /// A place whose first block a slot holds, so that a recorded launch draws a new mask at each replay: whoever replays
    /// moves the slot on by the blocks that were used.
    pub fn in_slot(seed: u64, offset: Arc<Slot>) -> Self {
        MaskPlace { seed: Word::Fixed(seed), offset: Word::Slot(offset) }
    }

    /// The seed, at this moment.
    pub fn seed(&self) -> u64 {
        self.seed.get()
    }

    /// The first block, at this moment.
    pub fn offset(&self) -> u64 {
        self.offset.get()
    }

    /// The two arguments of a kernel: seed and first block.
    pub(crate) fn scalars(&self) -> [Scalar; 2] {
        [self.seed.scalar(), self.offset.scalar()]
    }
}

/// Sets aside blocks of a generator, or of the process-wide one: there at every replay, where a step is being recorded.
pub(crate) fn reserve(generator: Option<&mut Generator>, blocks: u64) -> MaskPlace {
    match generator {
        Some(generator) => MaskPlace::from(generator.reserve(blocks)),
        None if launch::is_repeating() => {
            let (seed, offset) = reserve_each_run(blocks);
            MaskPlace { seed: Word::Slot(seed), offset: Word::Slot(offset) }
        }
        None => MaskPlace::from(reserve_default(blocks)),
    }
}

/// Zeroes each element with probability `p` and divides the others by `1 - p`, so that the expected value stays.
///
/// Every call draws a new mask; the place that comes with the result lets [`dropout_backward`] draw the same one. The mask is
/// [`bernoulli`](crate::random::bernoulli) of `1 - p` at that place, with the same bits on every device. With `None` for the
/// generator the process-wide one is used and moved on.
///
/// ```
/// use netcl_core::{device::manager, dtype::DType, random::Generator, tensor::Tensor};
///
/// let x = Tensor::full(&manager().cpu().queue, [1000], DType::F32, 1.0)?;
/// let (y, place) = netcl_ops::dropout(&x, 0.25, Some(&mut Generator::new(1)))?;
/// let kept = y.to_host::<f32>()?.into_iter().filter(|v| *v != 0.0).count();
/// assert!((700..800).contains(&kept));
/// // The gradient passes where the value did.
/// assert_eq!(netcl_ops::dropout_backward(&x, 0.25, &place)?.to_host::<f32>()?, y.to_host::<f32>()?);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub fn dropout(x: &Tensor, p: f64, generator: Option<&mut Generator>) -> Result<(Tensor, MaskPlace)> {
    check_probability("dropout", p)?;
    x.check_float("dropout")?;
    if generator.is_some() {
        check_own_generator("dropout")?;
    }
    let place = reserve(generator, dropout_blocks(x.size()));
    Ok((dropout_at(x, p, &place)?, place))
}

/// How many random blocks the mask of so many elements takes: what a generator has to reserve for [`dropout_at`].
pub fn dropout_blocks(elements: usize) -> u64 {
    blocks_for(elements)
}

/// [`dropout`] with the mask of a given place.
pub fn dropout_at(x: &Tensor, p: f64, place: &MaskPlace) -> Result<Tensor> {
    run("dropout", x, p, place)
}

/// The gradient of [`dropout`], with the mask of the same place.
pub fn dropout_backward(grad: &Tensor, p: f64, place: &MaskPlace) -> Result<Tensor> {
    run("dropout_backward", grad, p, place)
}

pub(crate) fn check_probability(op: &'static str, p: f64) -> Result<()> {
    if (0.0..=1.0).contains(&p) {
        return Ok(());
    }
    Err(Error::argument(op, format!("{p} is not a probability; use a number from 0 to 1")))
}

/// The probability to keep an element, as the mask is drawn with, and what kept elements are multiplied by.
pub(crate) fn keep_and_scale(p: f64) -> (f32, f64) {
    let keep = 1.0 - p;
    (keep as f32, if keep > 0.0 { keep.recip() } else { 0.0 })
}

fn run(op: &'static str, x: &Tensor, p: f64, place: &MaskPlace) -> Result<Tensor> {
    x.check_float(op)?;
    check_probability(op, p)?;
    if p == 0.0 {
        return x.duplicate();
    }
    let x = x.contiguous()?;
    let out = Tensor::uninit(x.queue(), x.shape().clone(), x.dtype())?;
    if out.size() == 0 {
        return Ok(out);
    }
    let (work, args) = match x.queue() {
        Queue::Cpu(_) => cpu::work(op, &x, &out, p, place),
        Queue::OpenCl(stream) => opencl::work(stream, &x, &out, p, place)?,
    };
    let cost = Cost { flops: x.size() as f64, bytes: (2 * x.size() * x.dtype().size()) as f64 };
    launch::submit(Launch { name: op.into(), queue: x.queue().clone(), work, args, cost })?;
    Ok(out)
}

//! Convolutions on OpenCL devices: which variant, and its launches.
//!
//! Sizes and offsets are arguments; only types, tiles and the epilogue are compiled in, so that a network needs few programs.
//! Images are read where they are, whatever their strides; weights that do not lie densely are copied first.

mod depthwise;
mod depthwise_channels;
mod im2col;
mod implicit;
mod tiled;
mod units;
mod winograd;

use netcl_core::backend::opencl::{Grid, Kernel, Stream};
use netcl_core::conv::ConvGeometry;
use netcl_core::dtype::DType;
use netcl_core::kernel_selector::{
    Choice, ConvPass, KernelConfig, KernelSelector, KernelVariant, Problem, get_kernel_selector, has_wgmma,
};
use netcl_core::kernels::described::CanFuse;
use netcl_core::kernels::expr::Expr;
use netcl_core::kernels::expr::opencl::IndexWidth;
use netcl_core::kernels::launch::{self, Access, Arg, Cost, Launch, Scalar, Work};
use netcl_core::precision::{MatmulPrecision, matmul_precision};
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result, tuner};
use smallvec::SmallVec;

use super::Variant;
use super::epilogue::ConvEpilogue;
use crate::norm::ChannelStatistics;
use crate::prelude::{self, Inline, Prelude};
use crate::prologue::{CheckedPrologue, TOO_DEAR, pays, pays_for_one};

type Args = SmallVec<[Arg; 8]>;

/// The file that most kernels have before their own.
const GEOMETRY: &str = include_str!("conv_geometry.cl");

/// An error if a variant was asked for that cannot compute a convolution.
pub(super) fn check(stream: &Stream, op: &'static str, variant: Variant, g: &ConvGeometry, dtype: DType) -> Result<()> {
    let reason = match variant {
        Variant::Winograd if !g.fits_winograd(dtype) => {
            "filters of 3x3 with stride 1, no dilation and one group, in float32"
        }
        Variant::Depthwise if !depthwise::fits(g) => "filters that see one channel each (groups = channels)",
        Variant::Units if !g.fits_units(dtype) || !has_wgmma(stream.device()) => {
            "one group of channels and filters that are whole multiples of 16 bytes, on NVIDIA's Hopper,"
        }
        _ => return Ok(()),
    };
    let what = format!(
        "the variant {variant:?} computes {reason} only, not filters of {:?} with stride {:?}, dilation {:?} and {} group(s) in \
         {dtype}; leave the variant open",
        g.kernel, g.stride, g.dilation, g.groups
    );
    Err(Error::argument(op, what))
}

/// What computes a convolution or a gradient: what the call forces, else what is forced on the thread, was measured or is the rule.
pub(super) fn choose(
    op: &'static str,
    g: &ConvGeometry,
    operand: &Tensor,
    pass: ConvPass,
    forced: Option<Variant>,
) -> Result<(Variant, Option<KernelConfig>)> {
    if let Some(forced) = forced {
        return Ok((forced, None));
    }
    let selector = get_kernel_selector(Some(operand.queue()))?;
    if pass == ConvPass::Forward {
        measure_at_first_use(&selector, g, operand)?;
    }
    let Choice { config, exact } = selector.choose_conv2d(op, g, operand.dtype(), pass)?;
    let variant = match config.variant {
        KernelVariant::Conv2dNaive => Variant::Naive,
        KernelVariant::Conv2dIm2col => Variant::Im2col,
        KernelVariant::Conv2dTiledLocal => Variant::TiledLocal,
        KernelVariant::Conv2dWinograd => Variant::Winograd,
        KernelVariant::Conv2dDepthwise => Variant::Depthwise,
        KernelVariant::Conv2dUnits => Variant::Units,
        _ => Variant::ImplicitGemm,
    };
    Ok((variant, exact.then_some(config)))
}

/// Whether what a variant computes of images is channels-last: what matrix units write, and what the next convolution on them will
/// want so.
pub(super) fn writes_channels_last(stream: &Stream, variant: Variant, g: &ConvGeometry, images: &Tensor) -> bool {
    let dtype = images.dtype();
    match variant {
        Variant::Units => true,
        Variant::Depthwise => depthwise_channels::fits(g, images),
        Variant::Im2col => {
            let narrow = dtype.size() == 2 || (dtype == DType::F32 && matmul_precision() != MatmulPrecision::Highest);
            let whole = (g.filters * dtype.size()).is_multiple_of(16);
            narrow && whole && im2col::writes_channels_last(g) && has_wgmma(stream.device())
        }
        _ => false,
    }
}

/// Convolutions below this many multiply-adds are not worth measuring.
const WORTH_MEASURING: usize = 128 * 128 * 128;

/// With `NETCL_AUTOTUNE=1`, measures the kernels for convolutions like this one if nobody did.
fn measure_at_first_use(selector: &KernelSelector, g: &ConvGeometry, x: &Tensor) -> Result<()> {
    // Padding that differs between the sides is not what would be measured; depthwise convolutions are bound by memory. While
    // launches are written down for later, there is nothing to measure.
    let worth = g.multiply_adds() >= WORTH_MEASURING && g.before() == g.after() && !depthwise::fits(g);
    if !tuner::autotune() || !worth || launch::has_sink() {
        return Ok(());
    }
    let problem = Problem::conv2d(g, x.dtype());
    if tuner::forced(|variant| problem.concerns(variant)).is_some() || selector.measured(&problem).is_some() {
        return Ok(());
    }
    crate::tuning::first_use_of_conv2d(x.queue(), g, x.dtype())
}

/// Whether images are computed while they are read: where they are not read too often for that.
pub(super) fn can_fuse(g: &ConvGeometry, x: &Tensor, variant: Variant, expr: &Expr) -> CanFuse {
    // A pixel belongs to about so many windows.
    let windows = g.taps().div_ceil(g.stride[0] * g.stride[1]);
    let pixels = x.size();
    let pays = match variant {
        Variant::Units => return CanFuse::No("the tensor copy engine reads images as they lie in memory"),
        Variant::Im2col => pays(expr, pixels, windows),
        Variant::ImplicitGemm => pays(expr, pixels, windows * g.filters.div_ceil(implicit::ROWS)),
        Variant::TiledLocal => pays(expr, pixels, g.filters.div_ceil(tiled::FILTERS)),
        // Tiles of 4 x 4 overlap by 2.
        Variant::Winograd => pays(expr, pixels, 4),
        Variant::Naive | Variant::Depthwise => pays_for_one(expr, pixels, windows * g.filters),
    };
    CanFuse::when(pays, TOO_DEAR)
}

/// The convolution, and the statistics of its channels if they are wanted and the variant has them at hand.
pub(super) fn forward(
    stream: &Stream,
    g: &ConvGeometry,
    [x, weight, out]: [&Tensor; 3],
    (prologue, epilogue): (Option<&CheckedPrologue<'_>>, &ConvEpilogue),
    (variant, config): (Variant, Option<&KernelConfig>),
    statistics: bool,
) -> Result<Option<ChannelStatistics>> {
    let tensors: SmallVec<[&Tensor; 8]> =
        [x, weight, out].into_iter().chain(prologue.iter().flat_map(|prologue| &prologue.inputs)).collect();
    let this = ConvLaunch { config, prologue, ..ConvLaunch::new(stream, g, epilogue, &tensors) };
    let weight = weight.contiguous()?;
    match variant {
        Variant::Im2col => im2col::forward(&this, [x, &weight, out]),
        Variant::ImplicitGemm => return implicit::forward(&this, [x, &weight, out], statistics),
        Variant::TiledLocal => tiled::run(&this, [x, &weight, out]),
        Variant::Winograd => winograd::run(&this, g, false, [x, &weight, out]),
        Variant::Depthwise => depthwise::forward(&this, [x, &weight, out]),
        Variant::Units => units::forward(&this, [x, &weight, out]),
        Variant::Naive => this.naive("conv_naive", [x, &weight, out], [g.pixels(), g.groups * g.filters, g.n]),
    }?;
    Ok(None)
}

/// What computes the gradient of the input. Only some of the variants have it; where the forced one has not, the device decides.
pub(super) fn choose_data(g: &ConvGeometry, grad: &Tensor, forced: Option<Variant>) -> Result<Variant> {
    let forced = forced.filter(|variant| match variant {
        Variant::TiledLocal => false,
        Variant::Winograd => g.flipped().is_some() && g.fits_winograd(grad.dtype()),
        Variant::Depthwise => depthwise::fits(g),
        Variant::Units => g.fits_units(grad.dtype()),
        _ => true,
    });
    choose("conv2d_backward_data", g, grad, ConvPass::Data, forced).map(|(variant, _)| variant)
}

/// The gradient of the input.
pub(super) fn backward_data(
    stream: &Stream,
    g: &ConvGeometry,
    grad: &Tensor,
    weight: &Tensor,
    out: &Tensor,
    epilogue: &ConvEpilogue,
    variant: Variant,
) -> Result<()> {
    let this = ConvLaunch::new(stream, g, epilogue, &[grad, weight, out]);
    let weight = weight.contiguous()?;
    match (variant, g.flipped()) {
        (Variant::Units, _) => units::backward_data(&this, [grad, &weight, out]),
        (Variant::Winograd, Some(flipped)) => winograd::run(&this, &flipped, true, [grad, &weight, out]),
        (Variant::Depthwise, _) => depthwise::backward_data(&this, [grad, &weight, out]),
        (Variant::Im2col, _) => im2col::backward_data(&this, [grad, &weight, out]),
        (Variant::ImplicitGemm | Variant::TiledLocal | Variant::Winograd, _) => {
            implicit::run(&this, ConvPass::Data, [grad, &weight, out])
        }
        (Variant::Naive, _) => {
            let pixels = g.input[0] * g.input[1];
            this.naive("conv_naive_data", [grad, &weight, out], [pixels, g.groups * g.channels, g.n])
        }
    }
}

/// The gradient of the weight.
pub(super) fn backward_weight(
    stream: &Stream,
    g: &ConvGeometry,
    grad: &Tensor,
    x: &Tensor,
    out: &Tensor,
    forced: Option<Variant>,
) -> Result<()> {
    let epilogue = ConvEpilogue::plain(x.dtype());
    let this = ConvLaunch::new(stream, g, &epilogue, &[grad, x, out]);
    let forced = forced.filter(|variant| match variant {
        Variant::TiledLocal | Variant::Winograd => false,
        Variant::Depthwise => depthwise::fits(g),
        Variant::Units => g.fits_units(x.dtype()),
        _ => true,
    });
    let (variant, _) = choose("conv2d_backward_weight", g, x, ConvPass::Weight, forced)?;
    match variant {
        Variant::Depthwise => depthwise::backward_weight(&this, [grad, x, out]),
        Variant::Im2col => im2col::backward_weight(&this, [grad, x, out]),
        Variant::Units => units::backward_weight(&this, [grad, x, out]),
        Variant::ImplicitGemm | Variant::TiledLocal | Variant::Winograd => {
            implicit::run(&this, ConvPass::Weight, [grad, x, out])
        }
        Variant::Naive => {
            this.naive("conv_naive_weight", [grad, x, out], [g.channels * g.taps(), g.groups * g.filters, 1])
        }
    }
}

/// One convolution or gradient on a device.
struct ConvLaunch<'c> {
    stream: &'c Stream,
    g: &'c ConvGeometry,
    /// How the first operand is computed, if it is.
    prologue: Option<&'c CheckedPrologue<'c>>,
    epilogue: &'c ConvEpilogue,
    index: IndexWidth,
    cost: Cost,
    /// What was measured for convolutions like this one; gradients have none.
    config: Option<&'c KernelConfig>,
}

impl<'c> ConvLaunch<'c> {
    fn new(stream: &'c Stream, g: &'c ConvGeometry, epilogue: &'c ConvEpilogue, tensors: &[&Tensor]) -> Self {
        let ends = tensors.iter().copied().chain(&epilogue.inputs).map(|t| t.layout().end());
        // Positions between the zeros around an image count as well.
        let around = (0..2).map(|i| g.input[i] + g.before()[i] + g.after()[i]).max();
        let columns = im2col::images_at_once(stream, g, epilogue.sum) * g.groups * g.channels * g.taps() * g.pixels();
        let scratch = [columns, winograd::elements(g), implicit::MAX_PARTS * g.weight_shape().size()];
        let span = ends.chain(scratch).chain(around).max().unwrap_or(0);
        let (index, cost) = (IndexWidth::for_span(span), g.cost(tensors));
        ConvLaunch { stream, g, prologue: None, epilogue, index, cost, config: None }
    }

    fn kernel(&self, name: &'static str, files: &[&str], define: impl Fn(&mut Prelude<'_>)) -> Result<Kernel> {
        prelude::kernel(self.stream, name, files, define)
    }

    /// Defines sums, how operands are loaded as sums, and what becomes of them.
    fn define(&self, prelude: &mut Prelude<'_>, operands: DType, epilogue: &ConvEpilogue) {
        prelude.sums(self.epilogue.sum, self.index);
        loads(prelude, operands);
        result(prelude, epilogue);
    }

    fn number(&self, value: usize) -> Arg {
        self.index.signed(value as isize)
    }

    /// The value of the macro STRIDE.
    fn stride(&self) -> usize {
        match self.g.stride {
            [down, right] if down == right && down <= 2 => down,
            _ => 0,
        }
    }

    /// The arguments that the kernels call STRIDES.
    fn strides(&self, tensor: &Tensor) -> impl Iterator<Item = Arg> {
        tensor.layout().strides().iter().map(|&stride| self.index.signed(stride))
    }

    /// The arguments that the kernels call GEOMETRY.
    fn geometry(&self) -> impl Iterator<Item = Arg> {
        let g = self.g;
        let ([h, w], [oh, ow], [kh, kw]) = (g.input, g.output, g.kernel);
        let ([sh, sw], [dh, dw], [top, left]) = (g.stride, g.dilation, g.before());
        [g.n, g.groups, g.channels, g.filters, h, w, oh, ow, kh, kw, sh, sw, dh, dw, top, left]
            .map(|value| self.number(value))
            .into_iter()
    }

    /// The arguments that the kernels call EPILOGUE_PARAMS.
    fn epilogue(&self) -> Args {
        let mut args = Args::new();
        if self.epilogue.expr.is_none() {
            return args;
        }
        for input in &self.epilogue.inputs {
            args.push(Arg::Buffer(input.storage().clone(), Access::Read));
            args.push(Arg::Scalar(Scalar::U64(input.layout().offset() as u64)));
            args.extend(self.strides(input));
        }
        args.extend(self.epilogue.scalars.iter().map(|number| number.arg(self.epilogue.compute)));
        args
    }

    /// Defines PROLOGUE, if the images are computed.
    fn define_prologue(&self, prelude: &mut Prelude<'_>) {
        if let Some(prologue) = self.prologue {
            prelude.prologue(prologue.expr, &prologue.inline(COORDINATES));
        }
    }

    /// The arguments that the kernels call PROLOGUE_PARAMS.
    fn prologue_args(&self) -> Args {
        let mut args = Args::new();
        let Some(prologue) = self.prologue else { return args };
        for input in &prologue.inputs {
            args.push(Arg::Buffer(input.storage().clone(), Access::Read));
            args.push(Arg::Scalar(Scalar::U64(input.layout().offset() as u64)));
            args.extend(self.strides(input));
        }
        args.extend(prologue.scalars.iter().map(|number| number.arg(prologue.compute)));
        args
    }

    /// Work-items along the first axis in groups, one by one along the others.
    fn grid(&self, [x, y, z]: [usize; 3]) -> Grid {
        let group = self.stream.device().info().max_work_group_size.min(64);
        Grid::new([x.next_multiple_of(group), y, z]).local([group, 1, 1])
    }

    /// Work-items for the pixels of planes: a group has pixels of several where one has few.
    fn planes(&self, pixels: usize, planes: usize, images: usize) -> Grid {
        let group = self.stream.device().info().max_work_group_size.clamp(1, 64);
        let along = pixels.next_power_of_two().min(1 << group.ilog2());
        let beside = group / along;
        Grid::new([pixels.next_multiple_of(along), planes.next_multiple_of(beside), images]).local([along, beside, 1])
    }

    fn send(&self, name: &'static str, kernel: Kernel, grid: Grid, args: Args, out: &Tensor, cost: Cost) -> Result<()> {
        launch::submit(Launch {
            name: name.into(),
            queue: out.queue().clone(),
            work: Work::OpenCl(kernel, grid),
            args,
            cost,
        })
    }

    /// A kernel of `conv_naive.cl`.
    fn naive(&self, name: &'static str, operands: [&Tensor; 3], items: [usize; 3]) -> Result<()> {
        let kernel = self.kernel(name, &[GEOMETRY, include_str!("conv_naive.cl")], |prelude| {
            self.define(prelude, operands[0].dtype(), self.epilogue);
            self.define_prologue(prelude);
            prelude.define("STRIDE", if name == "conv_naive_data" { self.stride() } else { 0 });
        })?;
        let mut args = places(operands);
        args.extend(self.strides(operands[0]));
        if name == "conv_naive_weight" {
            args.extend(self.strides(operands[1]));
        }
        args.extend(self.geometry());
        args.extend(self.epilogue());
        args.extend(self.prologue_args());
        self.send(name, kernel, self.grid(items), args, operands[2], self.cost)
    }
}

/// Two operands and a result, each with its offset.
fn places(tensors: [&Tensor; 3]) -> Args {
    let mut args = Args::new();
    for (i, tensor) in tensors.into_iter().enumerate() {
        let access = if i == 2 { Access::Write } else { Access::Read };
        args.push(Arg::Buffer(tensor.storage().clone(), access));
        args.push(Arg::Scalar(Scalar::U64(tensor.layout().offset() as u64)));
    }
    args
}

/// What kernels call an element's coordinates, and the strides that belong to them.
const COORDINATES: [(&str, &str); 4] = [("n", "n"), ("c", "c"), ("y", "y"), ("x", "x")];

/// Defines how operands are loaded as sums.
fn loads(prelude: &mut Prelude<'_>, dtype: DType) {
    prelude.loads("T", "LOAD", dtype, dtype.accumulator());
}

/// Defines what becomes of a sum and how it is stored.
fn result(prelude: &mut Prelude<'_>, epilogue: &ConvEpilogue) {
    let inputs = epilogue.inputs.iter().map(|input| input.dtype()).collect();
    let inline = Inline { compute: epilogue.compute, inputs, coordinates: COORDINATES };
    prelude.epilogue(epilogue.dtype, epilogue.expr.as_ref(), &inline);
}

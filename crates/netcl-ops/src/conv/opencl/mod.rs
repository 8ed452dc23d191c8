//! Convolutions on OpenCL devices: which variant, and its launches.
//!
//! Sizes and offsets are arguments; only types, tiles and the epilogue are compiled in, so that a network needs few programs.
//! Images are read where they are, whatever their strides; weights that do not lie densely are copied first.

mod im2col;
mod implicit;
mod source;
mod tiled;
mod tuned;
mod winograd;

use netcl_core::backend::opencl::{Grid, Kernel, Source, Stream};
use netcl_core::dtype::DType;
use netcl_core::kernel_selector::{KernelConfig, KernelVariant, get_kernel_selector};
use netcl_core::kernels::described::Taken;
use netcl_core::kernels::expr::Expr;
use netcl_core::kernels::expr::opencl::IndexWidth;
use netcl_core::kernels::launch::{self, Access, Arg, Cost, Launch, Scalar, Work};
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};
use smallvec::SmallVec;

use super::Variant;
use super::finish::Finish;
use super::geometry::Geometry;
use crate::lead::{Lead, TOO_DEAR, pays, pays_for_one};
use crate::matmul::has_matrix_units;
use crate::norm::ChannelStatistics;
use crate::prelude::Prelude;
use im2col::Windows;
use implicit::Mode;
use source::{COORDINATES, loads, result};
pub(super) use tuned::configuration;

type Args = SmallVec<[Arg; 8]>;

/// An error if a variant was asked for that cannot compute a convolution.
pub(super) fn check(op: &'static str, variant: Variant, g: &Geometry, dtype: DType) -> Result<()> {
    let reason = match variant {
        Variant::Winograd if !winograd_fits(g, dtype) => {
            "filters of 3x3 with stride 1, no dilation and one group, in float32"
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

fn winograd_fits(g: &Geometry, dtype: DType) -> bool {
    g.kernel == [3, 3] && g.stride == [1, 1] && g.dilation == [1, 1] && g.groups == 1 && dtype == DType::F32
}

/// Filters, elements of a window, and multiply-adds from which windows are written out for matrix units. Eight convolutions of
/// ResNet-18 were timed on an H200, of 64 filters and 2^28 multiply-adds and more: all gained. Where that begins is not known.
const NARROWEST: usize = 16;
const SMALLEST: usize = 1 << 26;

const RUNS: &str = "a processor copies windows as runs of bits, each pixel several times";

/// Whether images are computed while they are read: where they are not read too often for that.
pub(super) fn takes(
    stream: &Stream,
    g: &Geometry,
    x: &Tensor,
    (forced, config): (Option<Variant>, Option<&KernelConfig>),
    expr: &Expr,
) -> Result<Taken> {
    let finish = Finish::plain(x.dtype());
    let this = Convolution { config, ..Convolution::new(stream, g, &finish, &[x]) };
    // A pixel belongs to about so many windows.
    let windows = g.taps().div_ceil(g.stride[0] * g.stride[1]);
    let pixels = x.size();
    let pays = match forced.map_or_else(|| this.choose(Mode::Forward, x), Ok)? {
        // Measured on PoCL and on Intel's runtime: computing in every window costs more than a pass over memory.
        Variant::Im2colPlanes => return Ok(Taken::No(RUNS)),
        Variant::Im2col => pays(expr, pixels, windows),
        Variant::ImplicitGemm => pays(expr, pixels, windows * g.filters.div_ceil(implicit::ROWS)),
        Variant::TiledLocal => pays(expr, pixels, g.filters.div_ceil(tiled::FILTERS)),
        // Tiles of 4 x 4 overlap by 2.
        Variant::Winograd => pays(expr, pixels, 4),
        Variant::Naive => pays_for_one(expr, pixels, windows * g.filters),
    };
    Ok(Taken::when(pays, TOO_DEAR))
}

/// The convolution, and the statistics of its channels if they are wanted and the variant has them at hand.
pub(super) fn forward(
    stream: &Stream,
    g: &Geometry,
    [x, weight, out]: [&Tensor; 3],
    (lead, finish): (Option<&Lead<'_>>, &Finish),
    (forced, config): (Option<Variant>, Option<&KernelConfig>),
    statistics: bool,
) -> Result<Option<ChannelStatistics>> {
    let tensors: SmallVec<[&Tensor; 8]> =
        [x, weight, out].into_iter().chain(lead.iter().flat_map(|lead| &lead.inputs)).collect();
    let this = Convolution { config, lead, ..Convolution::new(stream, g, finish, &tensors) };
    let weight = weight.contiguous()?;
    match forced.map_or_else(|| this.choose(Mode::Forward, x), Ok)? {
        Variant::Im2col => im2col::forward(&this, Windows::Single, [x, &weight, out]),
        Variant::Im2colPlanes => im2col::forward(&this, Windows::Planes, [x, &weight, out]),
        Variant::ImplicitGemm => return implicit::forward(&this, [x, &weight, out], statistics),
        Variant::TiledLocal => tiled::run(&this, [x, &weight, out]),
        Variant::Winograd => winograd::run(&this, g, false, [x, &weight, out]),
        Variant::Naive => this.naive("conv_naive", [x, &weight, out], [g.pixels(), g.groups * g.filters, g.n]),
    }?;
    Ok(None)
}

/// The gradient of the input.
pub(super) fn backward_data(
    stream: &Stream,
    g: &Geometry,
    grad: &Tensor,
    weight: &Tensor,
    out: &Tensor,
    finish: &Finish,
    forced: Option<Variant>,
) -> Result<()> {
    let this = Convolution::new(stream, g, finish, &[grad, weight, out]);
    let weight = weight.contiguous()?;
    let flipped = g.flipped();
    // Only some of the variants have this gradient; where the forced one has not, the device decides.
    let forced = forced.filter(|variant| match variant {
        Variant::TiledLocal => false,
        Variant::Winograd => flipped.is_some() && winograd_fits(g, grad.dtype()),
        _ => true,
    });
    match (forced.map_or_else(|| this.choose(Mode::Data, grad), Ok)?, flipped) {
        (Variant::Winograd, Some(flipped)) => winograd::run(&this, &flipped, true, [grad, &weight, out]),
        (Variant::Im2col, _) => im2col::backward_data(&this, Windows::Single, [grad, &weight, out]),
        (Variant::Im2colPlanes, _) => im2col::backward_data(&this, Windows::Planes, [grad, &weight, out]),
        (Variant::ImplicitGemm | Variant::TiledLocal | Variant::Winograd, _) => {
            implicit::run(&this, Mode::Data, [grad, &weight, out])
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
    g: &Geometry,
    grad: &Tensor,
    x: &Tensor,
    out: &Tensor,
    forced: Option<Variant>,
) -> Result<()> {
    let finish = Finish::plain(x.dtype());
    let this = Convolution::new(stream, g, &finish, &[grad, x, out]);
    let forced = forced.filter(|variant| !matches!(variant, Variant::TiledLocal | Variant::Winograd));
    match forced.map_or_else(|| this.choose(Mode::Weight, x), Ok)? {
        Variant::Im2col => im2col::backward_weight(&this, Windows::Single, [grad, x, out]),
        Variant::Im2colPlanes => im2col::backward_weight(&this, Windows::Planes, [grad, x, out]),
        Variant::ImplicitGemm | Variant::TiledLocal | Variant::Winograd => {
            implicit::run(&this, Mode::Weight, [grad, x, out])
        }
        Variant::Naive => {
            this.naive("conv_naive_weight", [grad, x, out], [g.channels * g.taps(), g.groups * g.filters, 1])
        }
    }
}

/// One convolution or gradient on a device.
struct Convolution<'c> {
    stream: &'c Stream,
    g: &'c Geometry,
    /// How the first operand is computed, if it is.
    lead: Option<&'c Lead<'c>>,
    finish: &'c Finish,
    index: IndexWidth,
    cost: Cost,
    /// What was measured for convolutions like this one; gradients have none.
    config: Option<&'c KernelConfig>,
}

impl<'c> Convolution<'c> {
    fn new(stream: &'c Stream, g: &'c Geometry, finish: &'c Finish, tensors: &[&Tensor]) -> Self {
        let ends = tensors.iter().copied().chain(&finish.inputs).map(|t| t.layout().end());
        // Positions between the zeros around an image count as well.
        let around = (0..2).map(|i| g.input[i] + g.before[i] + g.after[i]).max();
        let columns = im2col::images_at_once(stream, g, finish.sum) * g.groups * g.channels * g.taps() * g.pixels();
        let scratch = [columns, winograd::elements(g), implicit::MAX_PARTS * g.weight_shape().size()];
        let span = ends.chain(scratch).chain(around).max().unwrap_or(0);
        let (index, cost) = (IndexWidth::for_span(span), g.cost(tensors));
        Convolution { stream, g, lead: None, finish, index, cost, config: None }
    }

    /// What was measured; else the selector's word, except that a filter over one channel is too little for a product, and that
    /// products on matrix units are worth their windows.
    fn choose(&self, mode: Mode, operand: &Tensor) -> Result<Variant> {
        let g = self.g;
        let selected = match self.config {
            Some(config) => config.variant,
            None if g.channels == 1 && g.filters < 8 => return Ok(Variant::Naive),
            None => {
                let selector = get_kernel_selector(Some(operand.queue()))?;
                selector.select_conv2d_by_rule(g.selector_shape(), operand.dtype()).variant
            }
        };
        Ok(match selected {
            KernelVariant::Conv2dNaive => Variant::Naive,
            KernelVariant::Conv2dIm2col if im2col::processor(self.stream) => Variant::Im2colPlanes,
            KernelVariant::Conv2dIm2col => Variant::Im2col,
            KernelVariant::Conv2dTiledLocal => Variant::TiledLocal,
            KernelVariant::Conv2dWinograd if winograd_fits(g, operand.dtype()) && mode != Mode::Weight => {
                Variant::Winograd
            }
            _ if self.config.is_none() && self.units_pay(operand) => Variant::Im2col,
            _ => Variant::ImplicitGemm,
        })
    }

    /// Whether windows are worth writing out: matrix units multiply them many times faster than the kernel that reads them where they
    /// are, which does without.
    fn units_pay(&self, operand: &Tensor) -> bool {
        let g = self.g;
        let terms = g.channels * g.taps();
        let work = g.n * g.groups * g.filters * g.pixels() * terms;
        terms.min(g.filters) >= NARROWEST && work >= SMALLEST && has_matrix_units(operand.queue(), operand.dtype())
    }

    fn kernel(&self, name: &str, prelude: Prelude, text: &str) -> Result<Kernel> {
        let key = format!("{name}{}", prelude.key);
        self.stream.kernel(&key, || (Source::new(prelude.text + text, ""), name))
    }

    fn number(&self, value: usize) -> Arg {
        Arg::Scalar(match self.index {
            IndexWidth::Bits32 => Scalar::I32(value as i32),
            IndexWidth::Bits64 => Scalar::I64(value as i64),
        })
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
        tensor.layout().strides().iter().map(|&stride| {
            Arg::Scalar(match self.index {
                IndexWidth::Bits32 => Scalar::I32(stride as i32),
                IndexWidth::Bits64 => Scalar::I64(stride as i64),
            })
        })
    }

    /// The arguments that the kernels call GEOMETRY.
    fn geometry(&self) -> impl Iterator<Item = Arg> {
        let g = self.g;
        let ([h, w], [oh, ow], [kh, kw]) = (g.input, g.output, g.kernel);
        let ([sh, sw], [dh, dw], [top, left]) = (g.stride, g.dilation, g.before);
        [g.n, g.groups, g.channels, g.filters, h, w, oh, ow, kh, kw, sh, sw, dh, dw, top, left]
            .map(|value| self.number(value))
            .into_iter()
    }

    /// The arguments that the kernels call EPILOGUE_PARAMS.
    fn epilogue(&self) -> Args {
        let mut args = Args::new();
        if self.finish.expr.is_none() {
            return args;
        }
        for input in &self.finish.inputs {
            args.push(Arg::Buffer(input.storage().clone(), Access::Read));
            args.push(Arg::Scalar(Scalar::U64(input.layout().offset() as u64)));
            args.extend(self.strides(input));
        }
        args.extend(self.finish.scalars.iter().map(|number| number.arg(self.finish.compute)));
        args
    }

    /// Defines LEAD, if the images are computed.
    fn define_lead(&self, prelude: &mut Prelude) {
        if let Some(lead) = self.lead {
            prelude.lead(lead.expr, &lead.inline(COORDINATES));
        }
    }

    /// The arguments that the kernels call LEAD_PARAMS.
    fn lead_args(&self) -> Args {
        let mut args = Args::new();
        let Some(lead) = self.lead else { return args };
        for input in &lead.inputs {
            args.push(Arg::Buffer(input.storage().clone(), Access::Read));
            args.push(Arg::Scalar(Scalar::U64(input.layout().offset() as u64)));
            args.extend(self.strides(input));
        }
        args.extend(lead.scalars.iter().map(|number| number.arg(lead.compute)));
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
        let mut prelude = Prelude::with_sums(self.finish.sum, self.index);
        loads(&mut prelude, operands[0].dtype());
        result(&mut prelude, self.finish);
        self.define_lead(&mut prelude);
        prelude.define("STRIDE", if name == "conv_naive_data" { self.stride() } else { 0 });
        let kernel = self.kernel(name, prelude, include_str!("conv_naive.cl"))?;
        let mut args = places(operands);
        args.extend(self.strides(operands[0]));
        if name == "conv_naive_weight" {
            args.extend(self.strides(operands[1]));
        }
        args.extend(self.geometry());
        args.extend(self.epilogue());
        args.extend(self.lead_args());
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

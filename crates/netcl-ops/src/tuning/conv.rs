//! Convolutions: the candidates and their contest.

use std::time::Instant;

use netcl_core::Result;
use netcl_core::backend::Queue;
use netcl_core::conv::ConvGeometry;
use netcl_core::device::manager;
use netcl_core::dtype::DType;
use netcl_core::kernel_selector::{KernelConfig, KernelVariant, Problem, get_kernel_selector};
use netcl_core::random::Generator;
use netcl_core::shape::{Shape, Slice};
use netcl_core::tensor::Tensor;
use netcl_core::tuner::{Contest, Limits, Tuning, tune, with_forced};

use super::{Progress, differs, tile};
use crate::conv::{ConvOptions, conv2d};

/// The product that reads windows where they are: filters, pixels, depth; results of a work-item down and across.
const IMPLICIT_TILES: &[[usize; 5]] = &[
    // What the rules choose, from large convolutions to small ones.
    [128, 128, 8, 8, 8],
    [64, 64, 16, 4, 4],
    [32, 32, 16, 4, 4],
    // Deeper: fewer barriers.
    [128, 128, 16, 8, 8],
    [64, 64, 32, 4, 4],
    // Few filters over many pixels.
    [32, 128, 16, 4, 8],
    [64, 128, 8, 8, 8],
    [64, 128, 16, 8, 8],
    // More results for each value read.
    [64, 64, 16, 8, 8],
    [128, 64, 16, 8, 8],
];

/// The others: windows as a matrix, the 3x3 algorithm, an image tile in local memory, one result for each work-item.
const OTHERS: &[KernelVariant] = &[
    KernelVariant::Conv2dIm2col,
    KernelVariant::Conv2dWinograd,
    KernelVariant::Conv2dTiledLocal,
    KernelVariant::Conv2dNaive,
];

/// Multiply-adds up to which all images are compared; else the first and the last.
const WHOLE: usize = 1 << 29;

/// The configurations that are measured for a convolution on a device, the likeliest first, all within its limits.
pub fn conv2d_candidates(queue: &Queue, g: &ConvGeometry, dtype: DType) -> Result<Vec<KernelConfig>> {
    let selector = get_kernel_selector(Some(queue))?;
    if let Queue::Cpu(_) = queue {
        return Ok(vec![selector.select_conv2d_kernel(g, dtype)]);
    }
    let winograd = g.fits_winograd(dtype);
    let cpu_device = selector.profile().base.device_type == "cpu";
    let others =
        OTHERS.iter().copied().filter(|variant| *variant != KernelVariant::Conv2dWinograd || winograd).map(other);
    // On CPU devices barriers cost: one tile of the implicit product shows how much.
    let tiles = if cpu_device { &IMPLICIT_TILES[1..2] } else { IMPLICIT_TILES };
    let tiles = tiles.iter().map(|lengths| tile(*lengths, KernelVariant::Conv2dImplicitGemm));
    let all: Vec<KernelConfig> = if cpu_device { others.chain(tiles).collect() } else { tiles.chain(others).collect() };
    Ok(all.into_iter().filter(|config| selector.fits(config, dtype)).collect())
}

/// Ways of computing whose tiles are their own affair.
fn other(variant: KernelVariant) -> KernelConfig {
    let local = matches!(variant, KernelVariant::Conv2dTiledLocal | KernelVariant::Conv2dWinograd);
    KernelConfig {
        tile_m: 16,
        tile_n: 16,
        work_per_thread: 1,
        local_size_1d: 1,
        use_local_memory: local,
        ..KernelConfig::new(variant)
    }
}

/// Measures the candidates for a convolution without a bias.
pub fn tune_conv2d(
    queue: &Queue,
    g: &ConvGeometry,
    dtype: DType,
    limits: &Limits,
    progress: Progress<'_>,
) -> Result<Tuning> {
    let start = Instant::now();
    queue.check_dtype("autotune_conv2d", dtype)?;
    let candidates = conv2d_candidates(queue, g, dtype)?;
    let mut contest = ConvContest::new(queue, g, dtype)?;
    let (trials, complete) = tune(candidates, &mut contest, limits, progress);
    Ok(Tuning {
        problem: Problem::conv2d(g, dtype),
        device: queue.device_name(),
        flops: 2.0 * g.multiply_adds() as f64,
        trials,
        took: start.elapsed(),
        complete,
    })
}

struct ConvContest {
    x: Tensor,
    weight: Tensor,
    options: ConvOptions<'static>,
    out: Option<Tensor>,
    /// Images that are compared: these of the first ones, and the last.
    images: Vec<usize>,
    expected: Vec<f64>,
    /// Terms of a sum.
    terms: usize,
    tolerance: f64,
}

impl ConvContest {
    fn new(queue: &Queue, g: &ConvGeometry, dtype: DType) -> Result<ConvContest> {
        let options = ConvOptions::from(g.params);
        let mut generator = Generator::new(16);
        let mut draw = |shape: Shape| crate::random::uniform(queue, shape, dtype, -1.0, 1.0, Some(&mut generator));
        let (x, weight) = (draw(g.input_shape())?, draw(g.weight_shape())?);
        let images = if g.multiply_adds() <= WHOLE || g.n < 2 { (0..g.n).collect() } else { vec![0, g.n - 1] };
        let (cpu, sums) = (manager().cpu().queue, dtype.accumulator());
        let kernel = weight.cast(sums)?.to(&cpu)?;
        let mut expected = Vec::new();
        for &i in &images {
            let image = x.slice(0, one(i))?.cast(sums)?.to(&cpu)?;
            expected.extend(conv2d(&image, &kernel, None, &options)?.to_f64_vec()?);
        }
        let tolerance = match dtype {
            DType::F64 => 1e-12,
            DType::F16 => 1e-2,
            DType::BF16 => 5e-2,
            // The 3x3 algorithm adds and subtracts more than the sum needs.
            _ => 5e-4,
        };
        let terms = g.channels * g.taps();
        Ok(ConvContest { x, weight, options, out: None, images, expected, terms, tolerance })
    }
}

fn one(at: usize) -> Slice {
    Slice::new(Some(at as isize), Some(at as isize + 1), 1)
}

impl Contest for ConvContest {
    fn call(&mut self, config: &KernelConfig) -> Result<()> {
        self.out = Some(with_forced(config, || conv2d(&self.x, &self.weight, None, &self.options))?);
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        self.x.queue().finish()
    }

    fn verify(&mut self, _: &KernelConfig) -> Result<Option<String>> {
        let Some(out) = self.out.take() else { return Ok(Some("there is no result".to_owned())) };
        let mut got = Vec::with_capacity(self.expected.len());
        for &i in &self.images {
            got.extend(out.slice(0, one(i))?.to_f64_vec()?);
        }
        let size = (self.terms as f64).sqrt() / 3.0;
        let wrong = differs(&got, &self.expected, size, self.tolerance);
        // The next candidate gets this memory, and nothing in it that is right by chance.
        out.fill(f64::NAN)?;
        Ok(wrong)
    }
}

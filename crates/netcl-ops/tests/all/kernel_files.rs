//! Every kernel file compiles alone behind `common.cl`, with the sizes that have no default.

use netcl_core::backend::Queue;
use netcl_core::backend::opencl::build;
use netcl_core::random::PHILOX_CL;

use crate::support::devices;

const COMMON: &str = include_str!("../../src/common.cl");

/// A kernel's file, what has to be defined for it, and one of its kernels. Those of matrix units and of the tensor copy engine
/// are not here: only their GPUs' compilers take them.
const FILES: &[(&str, &str, &str)] = &[
    (
        concat!(
            include_str!("../../src/conv/opencl/conv_geometry.cl"),
            include_str!("../../src/conv/opencl/conv_im2col.cl")
        ),
        "",
        "im2col",
    ),
    (
        concat!(
            include_str!("../../src/conv/opencl/conv_geometry.cl"),
            include_str!("../../src/conv/opencl/conv_im2col.cl")
        ),
        "-D DATA=1",
        "col2im",
    ),
    (
        concat!(
            include_str!("../../src/conv/opencl/conv_geometry.cl"),
            include_str!("../../src/conv/opencl/conv_implicit_gemm.cl")
        ),
        "-D MODE=0 -D ROWS=64 -D COLS=64 -D DEPTH=16 -D R=4 -D C=4",
        "conv_implicit_gemm",
    ),
    (
        concat!(
            include_str!("../../src/conv/opencl/conv_geometry.cl"),
            include_str!("../../src/conv/opencl/conv_naive.cl")
        ),
        "",
        "conv_naive",
    ),
    (
        concat!(
            include_str!("../../src/conv/opencl/conv_geometry.cl"),
            include_str!("../../src/conv/opencl/conv_tiled_local.cl")
        ),
        "-D TX=16 -D TY=16 -D FILTERS=4",
        "conv_tiled_local",
    ),
    (include_str!("../../src/conv/opencl/conv_winograd.cl"), "", "winograd_input"),
    (include_str!("../../src/conv/opencl/conv_depthwise.cl"), "", "depthwise"),
    (include_str!("../../src/conv/opencl/conv_depthwise_channels.cl"), "", "depthwise_channels"),
    (include_str!("../../src/cross_entropy/cross_entropy.cl"), "-D LABEL=long", "cross_entropy_groups"),
    (include_str!("../../src/cross_entropy/cross_entropy_rows.cl"), "", "cross_entropy_rows"),
    (include_str!("../../src/indexing/add_rows.cl"), "-D KEYS=int -D PLACES=int", "add_rows"),
    (include_str!("../../src/indexing/put.cl"), "", "put_rows"),
    (include_str!("../../src/indexing/take.cl"), "", "take"),
    (include_str!("../../src/indexing/take_sum.cl"), "", "take_sum"),
    (include_str!("../../src/integer/integer.cl"), "-D EXPRESSION=x+y", "elements"),
    (include_str!("../../src/linear_gradients/linear_gradients.cl"), "-D SIDE=16", "linear_gradients"),
    (include_str!("../../src/matmul/matmul_naive.cl"), "", "matmul_naive"),
    (include_str!("../../src/matmul/matmul_tiled.cl"), "-D TILE=16", "matmul_tiled"),
    (
        include_str!("../../src/matmul/matmul_register_tiled.cl"),
        "-D ROWS=64 -D COLS=64 -D DEPTH=16 -D R=4 -D C=4 -D RUN=4 -D SLICES=1 -D A_LINES=0 -D B_LINES=1 -D A_WIDTH=1 \
         -D B_WIDTH=1 -D C_WIDTH=1 -D UNROLLED=1",
        "matmul_register_tiled",
    ),
    (
        include_str!("../../src/matmul/matmul_strip.cl"),
        "-D SUM4=float4 -D ROWS=4 -D COLS=32 -D TERMS=8 -D B_LINES=1 -D A_WIDTH=1 -D B_WIDTH=1 -D UNROLLED=1",
        "matmul_strip",
    ),
    (
        include_str!("../../src/matmul/matmul_vectorized.cl"),
        "-D A=float -D LOAD_A(p,i)=((p)[i]) -D VEC=float8 -D VLOAD=vload8 -D VSTORE=vstore8 -D WIDTH=8 -D VECTORS=2 -D ROWS=4 \
         -D PLAIN=1",
        "matmul_vectorized",
    ),
    (include_str!("../../src/matmul/matmul_pack.cl"), "-D PANEL=16", "matmul_pack"),
    (include_str!("../../src/matmul/matmul_splitk_reduce.cl"), "-D SLICES=1", "matmul_splitk_reduce"),
    (
        include_str!("../../src/matmul/matmul_split.cl"),
        "-D VECTOR=float8 -D PART=ushort -D PARTS=3 -D ALIGNED=0",
        "matmul_split",
    ),
    (include_str!("../../src/matmul/matmul_turn.cl"), "", "matmul_turn"),
    (include_str!("../../src/norm/norm.cl"), "-D KERNEL_norm_rows -D KERNEL_norm_moments", "norm_rows"),
    (
        include_str!("../../src/norm/norm_backward.cl"),
        "-D KERNEL_norm_rows_and_columns -D KERNEL_norm_rows_and_planes",
        "norm_rows_and_planes",
    ),
    (
        concat!(include_str!("../../src/norm/row_moments.cl"), include_str!("../../src/norm/norm_registers.cl")),
        "-D KERNEL_norm_rows_registers -D KERNEL_norm_back_sums",
        "norm_rows_registers",
    ),
    (include_str!("../../src/norm/norm_columns.cl"), "-D KERNEL_norm_moments_columns", "norm_moments_columns"),
    (include_str!("../../src/norm/norm_planes.cl"), "-D KERNEL_norm_moments_planes", "norm_moments_planes"),
    (include_str!("../../src/pad/pad.cl"), "-D KERNEL_pad -D KERNEL_pad_backward", "pad"),
    (include_str!("../../src/pick/pick.cl"), "-D LABEL=long", "pick"),
    (include_str!("../../src/pool/pool.cl"), "-D KERNEL_max_pool -D KERNEL_avg_pool_backward", "max_pool"),
    (
        include_str!("../../src/quantized/quantized.cl"),
        "-D COMPUTE4=float4 -D BITS=4 -D ROWS=2 -D KERNEL_quantized_linear -D KERNEL_dequantize",
        "quantized_linear",
    ),
    (
        include_str!("../../src/recurrent/recurrent.cl"),
        "-D COMPUTE4=float4 -D ALIGNED=0 -D ROWS=4 -D X=4 -D Y=2 -D SLICES=2 -D GATES=1 -D SAVED=0 -D MEMORY=0 -D CARRIES=0 \
         -D APART=0 -D CELL(v,y)=((y)[0]=tanh((v)[0]+(v)[2]+(v)[1]))",
        "recurrent_forward",
    ),
    (include_str!("../../src/resample/resample.cl"), "-D KERNEL_resample -D KERNEL_resample_backward", "resample"),
    (include_str!("../../src/softmax/backward/softmax_backward.cl"), "", "softmax_backward_registers"),
    (include_str!("../../src/segment/segment.cl"), "-D KERNEL_segment_sum -D KERNEL_segment_argmax", "segment_sum"),
    (include_str!("../../src/sort/put.cl"), "", "put"),
];

/// Files whose definitions do not fit a compiler's options.
const DEFINED: &[(&str, &str, &str)] = &[
    (
        include_str!("../../src/attention/attention.cl"),
        "#define QUERIES 32\n#define KEYS 16\n#define TX 8\n#define TY 8\n#define D 64\n#define DV 64\n#define DROPOUT 0\n",
        "attention_forward",
    ),
    (
        concat!(
            include_str!("../../src/attention/attention.cl"),
            include_str!("../../src/attention/attention_split.cl")
        ),
        "#define ROWS 4\n#define TX 128\n#define TY 1\n#define KEYS 32\n#define LANES 4\n#define COLS 16\n#define SLICES 8\n#define D 64\n\
         #define DV 64\n#define DROPOUT 0\n#define SPLIT\n#define PARTS 1\n#define APPEND 1\n#define PLACE long\n",
        "attention_split",
    ),
    (
        include_str!("../../src/reduce/reduce.cl"),
        "#define OP 0\n#define VARIANT 0\n#define INPUT_PARAMS __global const float *x,\n#define KEPT_PARAMS\n\
         #define OUTPUT_PARAMS __global float *y,\n#define KEPT(o) __global const float *x_row = x + (o) * n\n\
         #define VALUE(v, r) v = x_row[r]\n#define RESULT(a, o) y[o] = (a)\n",
        "reduce_finish",
    ),
    (
        include_str!("../../src/reduce/reduce_groups.cl"),
        "#define OP 0\n#define PARTIAL 1\n#define COLUMNS 0\n#define UNROLL 2\n#define INPUT_PARAMS __global const float *x,\n\
         #define KEPT_PARAMS\n#define OUTPUT_PARAMS __global float *y,\n\
         #define KEPT(o) __global const float *x_o = x + (o) * n\n#define PLACE(r) __global const float *x_p = x_o + (r)\n\
         #define VALUE(v, d) v = x_p[d]\n#define VVALUE(v, d) v = *(__global const float4 *)(x_p + (d))\n\
         #define RESULT(a, o) y[o] = (a)\n",
        "reduce_groups",
    ),
    (
        include_str!("../../src/scan/scan.cl"),
        "#define KEPT_PARAMS __global const float *x, __global float *y,\n\
         #define KEPT(o) __global const float *x_o = x + (o) * n; __global float *y_o = y + (o) * n\n\
         #define LOAD(r) x_o[r]\n#define STORE(v, r) y_o[r] = (v)\n",
        "scan_group",
    ),
    (
        include_str!("../../src/softmax/softmax_registers.cl"),
        "#define LOG 0\n#define KERNEL_softmax_registers\n#define KERNEL_softmax_long\n\
         #define KEPT_PARAMS __global const float *x, __global float *y,\n\
         #define KEPT(o) __global const float *x_o = x + (o) * n; __global float *y_o = y + (o) * n\n",
        "softmax_long",
    ),
    (
        include_str!("../../src/sort/sort.cl"),
        "#define KEY uint\n#define TO_KEY(bits) float_key(bits)\n#define IS_NAN(bits) (((bits) & 0x7fffffffu) > 0x7f800000u)\n",
        "sort_pieces",
    ),
];

#[test]
fn every_kernel_file_compiles_alone() {
    let random = |text: &str| [COMMON, PHILOX_CL, text].concat();
    let behind =
        |(text, options, name): &(&str, &str, &'static str)| ([COMMON, text].concat(), (*options).to_owned(), *name);
    let mut programs: Vec<(String, String, &str)> = FILES.iter().map(behind).collect();
    programs
        .extend(DEFINED.iter().map(|(text, defines, name)| ([defines, COMMON, text].concat(), String::new(), *name)));
    programs.push((random(include_str!("../../src/random/random.cl")), String::new(), "random_uniform"));
    programs.push((random(include_str!("../../src/dropout/dropout.cl")), String::new(), "dropout"));
    let devices = devices();
    let streams: Vec<_> = devices
        .iter()
        .filter_map(|device| match &device.queue {
            Queue::OpenCl(stream) => Some(stream),
            Queue::Cpu(_) => None,
        })
        .collect();
    let mut wrong = Vec::new();
    // Each file on one of the devices: a build costs a third of a second.
    for ((source, options, name), stream) in programs.iter().zip(streams.iter().cycle()) {
        match build(stream.context(), stream.device(), source, options) {
            Ok(program) if program.kernel_names().iter().any(|kernel| kernel == name) => {}
            Ok(program) => wrong.push(format!("{name}: {:?}", program.kernel_names())),
            Err(error) => wrong.push(format!("{name}: {error}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

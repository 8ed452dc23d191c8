//! Every recordable op as a case: what it is called, what it takes, how it is applied. Checks of gradients run over this list.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of it")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test should panic")]

use netcl_autograd::core::backend::Queue;
use netcl_autograd::core::device::{DeviceHandle, manager};
use netcl_autograd::core::dtype::DType;
use netcl_autograd::core::kernels::expr::table;
use netcl_autograd::core::random::{Generator, fill_uniform_f64};
use netcl_autograd::core::shape::Slice;
use netcl_autograd::core::tensor::HostOptions;
use netcl_autograd::gradcheck::Tolerance;
use netcl_autograd::ops::{elementwise, layout, matmul};
use netcl_autograd::{Result, Tensor};

pub fn cpu() -> Queue {
    manager().cpu().queue
}

/// The native CPU and every OpenCL device. A machine without OpenCL is named, and fails the run where all must be tested.
pub fn devices() -> Vec<DeviceHandle> {
    let found = manager().discover().unwrap();
    if found.is_empty() {
        eprintln!("NOT TESTED on OpenCL: there is no device here");
        assert!(std::env::var_os("CI").is_none(), "CI needs an OpenCL device: install pocl-opencl-icd");
    }
    let mut handles = vec![manager().cpu()];
    handles.extend(found.iter().map(|device| manager().handle(device).unwrap()));
    handles
}

/// Numbers without a pattern between two bounds, the same for the same seed.
pub fn values(n: usize, seed: u64, (low, high): (f64, f64)) -> Vec<f64> {
    let mut values = vec![0.0; n];
    fill_uniform_f64(&mut values, &Generator::new(seed)).unwrap();
    values.into_iter().map(|u| low + u * (high - low)).collect()
}

/// A leaf of such numbers.
pub fn leaf(queue: &Queue, dtype: DType, shape: &[usize], seed: u64, bounds: (f64, f64)) -> Tensor {
    let options = HostOptions { dtype: Some(dtype), ..Default::default() };
    let values = values(shape.iter().product(), seed, bounds);
    Tensor::from_host_with(queue, &values, shape, options).unwrap().with_grad()
}

/// Second derivatives come from differences of first ones: a larger step, a looser tolerance.
pub const SECOND: Tolerance = Tolerance { eps: 1e-5, atol: 1e-4, rtol: 1e-3 };

type Function = Box<dyn Fn(&[&Tensor]) -> Result<Tensor>>;

/// One op, or one form of it.
pub struct Case {
    pub name: String,
    /// Shape and range of each input.
    pub inputs: Vec<(Vec<usize>, (f64, f64))>,
    /// Whether it launches a kernel of its own kind, worth differences on every device.
    pub heavy: bool,
    pub function: Function,
}

impl Case {
    /// The inputs as leaves.
    pub fn leaves(&self, queue: &Queue, dtype: DType) -> Vec<Tensor> {
        let inputs = self.inputs.iter().enumerate();
        inputs.map(|(i, (shape, bounds))| leaf(queue, dtype, shape, 11 + i as u64, *bounds)).collect()
    }
}

const ONE: (f64, f64) = (-1.0, 1.0);

/// Where an op of the table is smooth enough for differences, inside its domain.
fn smooth(op: &table::OpDef, operand: usize) -> (f64, f64) {
    let (low, high) = op.domain[operand];
    match op.name {
        "log" | "sqrt" | "rsqrt" | "reciprocal" => (0.3, 3.0),
        "div" if operand == 1 => (0.5, 2.0),
        "pow" => [(0.4, 2.0), (-1.5, 2.0)][operand],
        "log1p" => (-0.4, 2.0),
        "tan" => (-1.2, 1.2),
        _ => (low.max(-2.2), high.min(2.2)),
    }
}

/// All of them: the elementwise table by itself, everything else by hand.
pub fn cases() -> Vec<Case> {
    let mut all: Vec<Case> = table::ops()
        .iter()
        .map(|op| Case {
            name: op.name.to_owned(),
            inputs: (0..op.arity()).map(|i| (vec![2, 3], smooth(op, i))).collect(),
            heavy: false,
            function: Box::new(move |t| {
                let operands: Vec<elementwise::Operand<'_>> = t.iter().map(|t| (*t).into()).collect();
                elementwise::apply(op.name, &operands, &[])
            }),
        })
        .collect();
    let mut case = |name: &str, heavy: bool, inputs: &[(&[usize], (f64, f64))], function: Function| {
        let inputs = inputs.iter().map(|(shape, bounds)| (shape.to_vec(), *bounds)).collect();
        all.push(Case { name: name.to_owned(), inputs, heavy, function });
    };

    // Broadcasting, numbers in place of tensors.
    case(
        "mul, broadcast",
        false,
        &[(&[4, 1, 3], ONE), (&[2, 1], ONE)],
        Box::new(|t| elementwise::mul(&t[0].exp()?, t[1])),
    );
    case("add, scalar tensor", false, &[(&[2, 3], ONE), (&[], ONE)], Box::new(|t| t[0] + t[1]));
    case("div by number", false, &[(&[5], ONE)], Box::new(|t| t[0] / 3.0));
    case("number over tensor", false, &[(&[5], (0.5, 2.0))], Box::new(|t| 2.0 / t[0]));
    case("where", false, &[(&[2, 3], ONE), (&[3], ONE)], Box::new(|t| elementwise::where_(&t[0].gt(0.1)?, t[0], t[1])));
    case("fma", false, &[(&[3], ONE), (&[3], ONE), (&[3], ONE)], Box::new(|t| elementwise::fma(t[0], t[1], t[2])));

    // Reductions.
    for keepdims in [false, true] {
        let shape: &[(&[usize], (f64, f64))] = &[(&[2, 3, 4], (0.2, 2.0))];
        let name = |op: &str| format!("{op}, keepdims {keepdims}");
        case(&name("sum"), true, shape, Box::new(move |t| t[0].square()?.sum(&[0, 2], keepdims)));
        case(&name("mean"), true, shape, Box::new(move |t| t[0].square()?.mean(1, keepdims)));
        case(&name("prod"), true, shape, Box::new(move |t| t[0].prod(2, keepdims)));
        case(&name("max"), true, shape, Box::new(move |t| t[0].max(1, keepdims)));
        case(&name("min"), true, shape, Box::new(move |t| t[0].min((), keepdims)));
        case(&name("var"), true, shape, Box::new(move |t| t[0].var(&[0, 1], 1.0, keepdims)));
        case(&name("std"), true, shape, Box::new(move |t| t[0].std((), 0.0, keepdims)));
        case(&name("norm 1"), true, shape, Box::new(move |t| t[0].norm(1.0, 0, keepdims)));
        case(&name("norm 2"), true, shape, Box::new(move |t| t[0].norm(2.0, 1, keepdims)));
        case(&name("norm 3"), true, shape, Box::new(move |t| t[0].norm(3.0, (), keepdims)));
        case(&name("norm inf"), true, shape, Box::new(move |t| t[0].norm(f64::INFINITY, -1, keepdims)));
        case(&name("logsumexp"), true, shape, Box::new(move |t| t[0].logsumexp(&[1, 2], keepdims)));
    }
    for axis in [0, 1, -1] {
        let shape: &[(&[usize], (f64, f64))] = &[(&[2, 3, 4], (-2.0, 2.0))];
        case(&format!("softmax, axis {axis}"), true, shape, Box::new(move |t| t[0].softmax(axis)));
        case(&format!("log_softmax, axis {axis}"), true, shape, Box::new(move |t| t[0].log_softmax(axis)));
        case(&format!("cumsum, axis {axis}"), true, shape, Box::new(move |t| t[0].square()?.cumsum(axis)));
    }

    // Products.
    let products: [(&[usize], &[usize]); 6] = [
        (&[2, 3], &[3, 4]),
        (&[3], &[3]),
        (&[3], &[2, 3, 2]),
        (&[2, 1, 2, 3], &[4, 3, 2]),
        (&[4, 3], &[3]),
        (&[9, 5], &[5, 17]),
    ];
    for (a, b) in products {
        case(&format!("matmul {a:?} {b:?}"), true, &[(a, ONE), (b, ONE)], Box::new(|t| t[0].matmul(t[1])));
    }
    case(
        "matmul, transposed",
        true,
        &[(&[4, 3], ONE), (&[5, 4], ONE)],
        Box::new(|t| t[0].transpose(0, 1)?.matmul(&t[1].transpose(0, 1)?)),
    );
    let linear: &[(&[usize], (f64, f64))] = &[(&[2, 5, 3], ONE), (&[4, 3], ONE), (&[4], ONE)];
    case("linear", true, linear, Box::new(|t| matmul::linear(t[0], t[1], Some(t[2]))));
    case("linear without bias", true, &linear[..2], Box::new(|t| matmul::linear(t[0], t[1], None)));
    case("bias_add", false, &[(&[2, 5, 3], ONE), (&[3], ONE)], Box::new(|t| matmul::bias_add(t[0], t[1])));
    case("bias_add, images", false, &[(&[2, 3, 2, 2], ONE), (&[3], ONE)], Box::new(|t| matmul::bias_add(t[0], t[1])));

    // Layout.
    let (x, y): ((&[usize], _), (&[usize], _)) = ((&[2, 1, 3], ONE), (&[2, 4, 3], ONE));
    case("reshape", false, &[y], Box::new(|t| layout::reshape(&t[0].transpose(0, 2)?, [24])));
    case("permute", false, &[y], Box::new(|t| t[0].permute(&[2, 0, 1])));
    case("expand", false, &[x], Box::new(|t| t[0].expand([5, 2, 4, 3])));
    case("slice", false, &[y], Box::new(|t| t[0].slice(1, Slice::new(Some(3), None, -2))));
    case("select", false, &[y], Box::new(|t| t[0].select(1, -2)));
    case("squeeze", false, &[x], Box::new(|t| t[0].squeeze(&[])));
    case("unsqueeze", false, &[x], Box::new(|t| t[0].unsqueeze(1)));
    case("flatten", false, &[y], Box::new(|t| t[0].flatten(1, -1)));
    case("flip", false, &[y], Box::new(|t| t[0].flip(&[0, -1])));
    case("contiguous", false, &[y], Box::new(|t| t[0].transpose(0, 2)?.contiguous()));
    case("duplicate", false, &[y], Box::new(|t| t[0].duplicate()));
    case("cat", false, &[x, y], Box::new(|t| layout::cat(&[t[0], t[1], t[0]], 1)));
    case("stack", false, &[x], Box::new(|t| layout::stack(&[t[0], &t[0].exp()?], -1)));
    case(
        "split",
        false,
        &[y],
        Box::new(|t| {
            let parts = layout::split(t[0], &[1, 3], 1)?;
            layout::cat(&[&parts[1], &parts[0].exp()?], 1)
        }),
    );
    case("chunk", false, &[y], Box::new(|t| layout::chunk(t[0], 3, 1)?[1].exp()));
    case("repeat", false, &[x], Box::new(|t| layout::repeat(t[0], &[2, 1, 3, 2])));
    case("tril", false, &[y], Box::new(|t| layout::tril(t[0], -1)));
    case("triu", false, &[y], Box::new(|t| layout::triu(t[0], 1)));
    all
}

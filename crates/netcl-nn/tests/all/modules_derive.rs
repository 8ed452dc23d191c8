//! `#[derive(Module)]`: which fields become what, generics, tuple structs, and whose `forward` is called.

use std::marker::PhantomData;

use netcl_nn::autograd::{DType, IndexTensor, Queue, Result, Tensor, manager};
use netcl_nn::*;

fn cpu() -> Queue {
    manager().cpu().queue
}

fn ones(shape: &[usize]) -> Tensor {
    Tensor::full(&cpu(), shape, DType::F32, 1.0).unwrap().with_grad()
}

fn linear(inputs: usize, outputs: usize) -> Linear {
    Linear::new(&cpu(), inputs, outputs).unwrap()
}

fn parameter_names(module: &dyn Module) -> Vec<String> {
    module.named_parameters().into_iter().map(|(name, _)| name).collect()
}

fn module_names(module: &dyn Module) -> Vec<String> {
    module.named_modules().into_iter().map(|(name, _)| name).collect()
}

type Activation = fn(&Tensor) -> Result<Tensor>;

/// Neither a module nor of a type that the macro knows.
struct Notes;

/// Every kind of field, children first so that the order of members can be seen.
#[derive(Module)]
struct Everything {
    first: Linear,
    maybe: Option<Linear>,
    boxed: Box<dyn Module>,
    list: Vec<Box<dyn Module>>,
    pair: (Linear, ReLU),
    grid: [Vec<Linear>; 2],
    weight: Tensor,
    bias: Option<Tensor>,
    scales: Vec<Tensor>,
    two: (Tensor, Option<Tensor>),
    #[module(buffer)]
    mean: Tensor,
    #[module(constant)]
    mask: Tensor,
    #[module(skip)]
    cache: Tensor,
    #[module(skip)]
    notes: Notes,
    #[module(skip)]
    activation: Activation,
    function: Box<dyn Fn(f64) -> f64 + Send + Sync>,
    #[module(show)]
    r#type: usize,
    #[module(show)]
    name: &'static str,
    sizes: Vec<(usize, usize)>,
    dtype: DType,
    training: bool,
    verbose: bool,
}

impl Everything {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _ = (&self.notes, &self.sizes, self.dtype, self.verbose, &self.cache);
        (self.activation)(&functional::mul(&self.first.forward(input)?, (self.function)(1.5))?)
    }
}

fn everything() -> Everything {
    Everything {
        first: linear(2, 2),
        maybe: None,
        boxed: Box::new(linear(2, 1)),
        list: vec![Box::new(ReLU), Box::new(linear(1, 1))],
        pair: (linear(1, 1), ReLU),
        grid: [vec![], vec![linear(1, 1)]],
        weight: ones(&[3]),
        bias: None,
        scales: vec![ones(&[1]), ones(&[2])],
        two: (ones(&[1]), Some(ones(&[1]))),
        mean: Tensor::from_shape(&cpu(), [2], DType::F32).unwrap(),
        mask: Tensor::from_shape(&cpu(), [2], DType::F32).unwrap(),
        cache: ones(&[9]),
        notes: Notes,
        activation: functional::neg,
        function: Box::new(|x| 2.0 * x),
        r#type: 3,
        name: "net",
        sizes: vec![(1, 2)],
        dtype: DType::F32,
        training: true,
        verbose: true,
    }
}

#[test]
fn fields_become_members_by_their_types_and_attributes() {
    let mut module = everything();
    let expected = [
        "weight",
        "scales.0",
        "scales.1",
        "two.0",
        "two.1", // the module's own come first
        "first.weight",
        "first.bias",
        "boxed.weight",
        "boxed.bias",
        "list.1.weight",
        "list.1.bias",
        "pair.0.weight",
        "pair.0.bias",
        "grid.1.0.weight",
        "grid.1.0.bias",
    ];
    assert_eq!(parameter_names(&module), expected);
    assert_eq!(module_names(&module), ["", "first", "boxed", "list.0", "list.1", "pair.0", "pair.1", "grid.1.0"]);
    let buffers: Vec<String> = module.named_buffers().into_iter().map(|(name, _)| name).collect();
    assert_eq!(buffers, ["mean"]);
    assert_eq!((module.kind(), module.arguments().as_str()), ("Everything", "type=3, name=net"));

    // What can be seen can be changed: the same names in the same order.
    let (mut seen, mut changed) = (Vec::new(), Vec::new());
    module.visit(&mut |name, _| seen.push(name.to_owned()));
    module.visit_mut(&mut |name, _| changed.push(name.to_owned()));
    assert_eq!(seen, changed);

    // The mode is the field of this name, and no other bool.
    module.eval();
    assert!(!module.training && !Module::training(&module) && module.verbose);

    // Everything moves with the module but what is skipped.
    module.cast(DType::F64).unwrap();
    assert!(module.parameters().iter().all(|tensor| tensor.dtype() == DType::F64 && tensor.requires_grad()));
    assert_eq!([module.mean.dtype(), module.mask.dtype(), module.cache.dtype()], [DType::F64, DType::F64, DType::F32]);
}

#[test]
fn the_trait_calls_the_struct_s_own_forward() {
    let module = everything();
    let x = Tensor::from_host(&cpu(), &[1.0f32, -2.0], [1, 2]).unwrap();
    let through_the_trait = (&module as &dyn Module).forward(&x).unwrap().to_host::<f32>().unwrap();
    assert_eq!(through_the_trait, module.forward(&x).unwrap().to_host::<f32>().unwrap());
    let inner = module.first.forward(&x).unwrap().to_host::<f32>().unwrap();
    assert_eq!(through_the_trait, inner.iter().map(|y| -3.0 * y).collect::<Vec<_>>());
}

/// Defined inside a function, as in examples: the macro must not need the module's path.
#[test]
fn generic_tuple_and_unit_structs_work_anywhere() {
    #[derive(Module)]
    struct Twice<M, T, const N: usize> {
        inner: M,
        extra: [Linear; N],
        marker: PhantomData<T>,
    }

    impl<M: Module, T: Send + Sync + 'static, const N: usize> Twice<M, T, N> {
        fn forward(&self, input: &Tensor) -> Result<Tensor> {
            let _ = self.marker;
            let value = self.inner.forward(&self.inner.forward(input)?)?;
            self.extra.iter().try_fold(value, |value, layer| layer.forward(&value))
        }
    }

    #[derive(Module)]
    struct Pair(Linear, #[module(buffer)] Tensor);

    impl Pair {
        fn forward(&self, input: &Tensor) -> Result<Tensor> {
            functional::add(&self.0.forward(input)?, &self.1)
        }
    }

    #[derive(Module)]
    struct Negate;

    impl Negate {
        fn forward(&self, input: &Tensor) -> Result<Tensor> {
            functional::neg(input)
        }
    }

    let pair = Pair(linear(2, 2), Tensor::full(&cpu(), [2], DType::F32, 5.0).unwrap());
    let twice: Twice<_, u8, 1> = Twice { inner: sequential![pair, Negate], extra: [linear(2, 3)], marker: PhantomData };
    let names = ["inner.0.0.weight", "inner.0.0.bias", "extra.0.weight", "extra.0.bias"];
    assert_eq!(parameter_names(&twice), names);
    assert_eq!(twice.named_buffers()[0].0, "inner.0.1");
    assert_eq!(twice.kind(), "Twice");
    let x = Tensor::from_host(&cpu(), &[1.0f32, -2.0], [1, 2]).unwrap();
    let (inner, extra) = (&twice.inner, &twice.extra[0]);
    let composed = extra.forward(&inner.forward(&inner.forward(&x).unwrap()).unwrap()).unwrap();
    assert_eq!(Module::forward(&twice, &x).unwrap().to_host::<f32>().unwrap(), composed.to_host::<f32>().unwrap());
}

mod elsewhere {
    use super::*;

    #[derive(Module)]
    pub(crate) struct Hidden<M = ReLU>
    where
        M: Module,
    {
        pub(crate) inner: M,
    }

    // Private, and yet what the trait calls; with the same name as the trait's, which others see instead.
    impl<M: Module> Hidden<M> {
        fn forward(&self, input: &Tensor) -> Result<Tensor> {
            functional::neg(&self.inner.forward(input)?)
        }
    }

    #[derive(netcl_nn::Module)]
    pub(crate) struct Plain;

    impl Plain {
        fn forward(&self, input: &Tensor) -> Result<Tensor> {
            functional::neg(input)
        }
    }
}

#[test]
fn a_private_forward_is_reached_through_the_trait() {
    let x = Tensor::from_host(&cpu(), &[2.0f32, -3.0], [2]).unwrap();
    let hidden: elsewhere::Hidden = elsewhere::Hidden { inner: ReLU };
    assert_eq!(hidden.forward(&x).unwrap().to_host::<f32>().unwrap(), [-2.0, -0.0]);
    assert_eq!(elsewhere::Plain.forward(&x).unwrap().to_host::<f32>().unwrap(), [-2.0, 3.0]);
}

#[test]
fn a_module_of_several_inputs_is_one_without_the_trait_s_forward() {
    #[derive(Module)]
    #[module(no_forward)]
    struct Score {
        left: Linear,
        right: Linear,
    }

    impl Score {
        fn forward(&self, left: &Tensor, right: &Tensor) -> Result<Tensor> {
            functional::mul(&self.left.forward(left)?, &self.right.forward(right)?)
        }
    }

    let score = Score { left: linear(1, 2), right: linear(3, 2) };
    assert_eq!(score.forward(&ones(&[4, 1]), &ones(&[4, 3])).unwrap().shape()[..], [4, 2]);
    assert_eq!(score.num_parameters(), 12);
    let error = Module::forward(&score, &ones(&[4, 1])).unwrap_err().to_string();
    assert!(error.contains("Score is no function of one tensor") && error.contains("(4, 1)"), "{error}");
}

#[test]
fn casting_leaves_integers_alone() {
    #[derive(Module)]
    #[module(no_forward)]
    struct Counter {
        weight: Tensor,
        #[module(buffer)]
        steps: Tensor,
    }

    let steps = IndexTensor::from_host(&cpu(), &[7i64], [1]).unwrap();
    let mut counter = Counter { weight: ones(&[1]), steps: Tensor::from(steps.tensor().clone()) };
    counter.cast(DType::F16).unwrap();
    assert_eq!((counter.weight.dtype(), counter.steps.dtype()), (DType::F16, DType::I64));
}

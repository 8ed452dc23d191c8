//! Reads the golden files of this folder, which `make.py` writes with PyTorch.

pub(crate) mod conv2d;

use std::collections::BTreeMap;

use netcl_core::backend::Queue;
use netcl_core::dtype::DType;
use netcl_core::tensor::Tensor;

use crate::support::{Tolerance, tensor};

/// One case: its name and its tensors by name.
pub(crate) struct Case {
    pub(crate) name: String,
    tensors: BTreeMap<String, (Vec<usize>, Vec<f64>)>,
}

/// The cases of a file.
pub(crate) fn cases(text: &str) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("case ") {
            cases.push(Case { name: name.to_owned(), tensors: BTreeMap::new() });
            continue;
        }
        let (head, values) = line.split_once(':').expect("a line of a golden file has a colon");
        let (key, shape) = head.split_once(' ').expect("and a shape before it");
        let shape: Vec<usize> = shape.split('x').filter(|n| !n.is_empty()).map(|n| n.parse().unwrap()).collect();
        let values: Vec<f64> = values.split_whitespace().map(|v| v.parse().unwrap()).collect();
        assert_eq!(values.len(), shape.iter().product::<usize>(), "{line}");
        cases.last_mut().expect("a case comes first").tensors.insert(key.to_owned(), (shape, values));
    }
    assert!(!cases.is_empty(), "the golden file is empty");
    cases
}

impl Case {
    /// A tensor on a device, as float32.
    pub(crate) fn tensor(&self, queue: &Queue, key: &str) -> Tensor {
        let (shape, values) = &self.tensors[key];
        tensor(queue, values, shape.as_slice(), DType::F32).0
    }

    /// The values of a tensor, if the case has it.
    pub(crate) fn values(&self, key: &str) -> Option<&[f64]> {
        self.tensors.get(key).map(|(_, values)| values.as_slice())
    }

    /// Whole numbers.
    pub(crate) fn numbers<const N: usize>(&self, key: &str) -> [usize; N] {
        let values: Vec<usize> = self.tensors[key].1.iter().map(|&v| v as usize).collect();
        values.try_into().unwrap()
    }

    /// Holds a result against the file.
    pub(crate) fn check(&self, device: &str, key: &str, got: &Tensor) {
        let (shape, values) = &self.tensors[key];
        assert_eq!(&got.shape().to_vec(), shape, "{} {key} on {device}", self.name);
        let near = Tolerance { relative: 1e-5, absolute: 1e-5 };
        if let Err(why) = near.check(&got.to_f64_vec().unwrap(), values) {
            panic!("{} {key} on {device}: {why}", self.name);
        }
    }
}

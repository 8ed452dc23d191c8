//! Constants whose shapes follow dynamic lengths: the same value all along an axis, or numbers that count.

use netcl_nn::autograd::trace::Value;
use netcl_nn::autograd::{DType, Slice, Tensor};

use super::builder::{Builder, Dim, Written, bytes_of, constant_that_depends, failed};
use super::lengths::unknown_length;

impl Builder<'_> {
    /// A constant with dynamic lengths: expanded where it is the same all along these axes, a range where it counts along one of them.
    pub(super) fn stretched(&mut self, seen: &[&Value]) -> Written<String> {
        let dims = self.shape_of(seen)?;
        let open: Vec<usize> = (0..dims.len()).filter(|&axis| dims[axis].fixed().is_none()).collect();
        let same = seen.iter().map(|value| alike(value, &open)).collect::<Written<Vec<Vec<bool>>>>()?;
        let counting: Vec<usize> = (0..open.len()).filter(|&at| same.iter().any(|run| !run[at])).collect();
        let keep: Vec<usize> = counting.iter().map(|&at| open[at]).collect();
        let cut: Vec<usize> = open.iter().copied().filter(|axis| !keep.contains(axis)).collect();
        let part = first_of(seen[0], &cut)?;
        let made = match keep[..] {
            [] => {
                let bytes = bytes_of(&Value::from(part.raw()))?;
                self.known(part.dtype(), part.shape(), bytes)
            }
            [axis] if part.size() == part.shape()[axis] => {
                let mut rule = None;
                for value in seen {
                    let found = counted(&first_of(value, &cut)?)?;
                    if found.is_none() || *rule.get_or_insert(found) != found {
                        return Err(constant_that_depends());
                    }
                }
                let Some(Some(rule)) = rule else { return Err(constant_that_depends()) };
                self.range(part.dtype(), &dims, axis, rule)?
            }
            _ => return Err(constant_that_depends()),
        };
        if cut.is_empty() {
            return Ok(made);
        }
        if dims.contains(&Dim::Unknown) {
            return Err(unknown_length());
        }
        let shape = self.numbers(&dims)?;
        Ok(self.node("Expand", &[&made, &shape], vec![]))
    }

    /// `first + i * step` along an axis, 1 element along all others.
    fn range(&mut self, dtype: DType, dims: &[Dim], axis: usize, (first, step): (f64, f64)) -> Written<String> {
        let length = self.numbers(&dims[axis..=axis])?;
        let none = self.list(&[]);
        let length = self.node("Reshape", &[&length, &none], vec![]);
        let (zero, one) = (self.scalar(DType::I64, 0.0), self.scalar(DType::I64, 1.0));
        let made = self.node("Range", &[&zero, &length, &one], vec![]);
        let mut made = self.cast(&made, DType::I64, dtype);
        for (operator, number, neutral) in [("Mul", step, 1.0), ("Add", first, 0.0)] {
            if number != neutral {
                let number = self.scalar(dtype, number);
                made = self.node(operator, &[&made, &number], vec![]);
            }
        }
        let to: Vec<i64> = (0..dims.len()).map(|at| if at == axis { -1 } else { 1 }).collect();
        let to = self.list(&to);
        Ok(self.node("Reshape", &[&made, &to], vec![]))
    }
}

/// Whether a value is the same all along each of these axes.
fn alike(value: &Value, axes: &[usize]) -> Written<Vec<bool>> {
    let whole = value.raw();
    let bytes = bytes_of(value)?;
    let same = |&axis: &usize| {
        if whole.shape()[axis] <= 1 {
            return Ok(true);
        }
        let part = first_of(value, &[axis])?;
        let spread = part.raw().expand(whole.shape().clone()).map_err(failed)?;
        Ok(bytes_of(&Value::from(&spread))? == bytes)
    };
    axes.iter().map(same).collect()
}

/// A value with the first element only of some axes.
fn first_of(value: &Value, axes: &[usize]) -> Written<Tensor> {
    let mut part = Tensor::from(value.raw().clone());
    for &axis in axes.iter().filter(|&&axis| value.raw().shape()[axis] > 1) {
        part = Tensor::from(part.raw().slice(axis as isize, Slice::new(Some(0), Some(1), 1)).map_err(failed)?);
    }
    Ok(part)
}

/// The first number and the step of numbers that count.
fn counted(part: &Tensor) -> Written<Option<(f64, f64)>> {
    let numbers = if part.dtype().is_float() {
        part.to_f64_vec().map_err(failed)?
    } else {
        let whole = part.raw().cast(DType::I64).and_then(|raw| raw.to_host::<i64>()).map_err(failed)?;
        whole.into_iter().map(|n| n as f64).collect()
    };
    let [first, second, ..] = numbers[..] else { return Ok(None) };
    let step = second - first;
    let counts = numbers.iter().enumerate().all(|(i, &n)| n == first + i as f64 * step);
    Ok(counts.then_some((first, step)))
}

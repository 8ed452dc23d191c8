//! How a tensor prints: values in nested brackets, then shape, dtype and device.

use std::fmt;

use super::Tensor;

/// Tensors with more elements than this show only the edges of each axis.
const SUMMARISE_ABOVE: usize = 1000;
const EDGE: usize = 3;

impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tensor(")?;
        match self.to_f64_vec() {
            Ok(values) => write_values(f, &values, self.shape(), values.len() > SUMMARISE_ABOVE, 1)?,
            Err(error) => write!(f, "<{error}>")?,
        }
        write!(f, ", shape={}, dtype={}, device={:?})", self.shape(), self.dtype(), self.queue().device_name())
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor(shape={}, dtype={}, strides={:?}", self.shape(), self.dtype(), self.layout().strides())?;
        write!(f, ", offset={}, device={:?})", self.layout().offset(), self.queue().device_name())
    }
}

fn write_values(f: &mut fmt::Formatter<'_>, values: &[f64], dims: &[usize], short: bool, depth: usize) -> fmt::Result {
    let Some((&n, rest)) = dims.split_first() else {
        return write_number(f, values[0]);
    };
    f.write_str("[")?;
    let step = rest.iter().product::<usize>();
    let mut first = true;
    for i in 0..n {
        let skipped = short && n > 2 * EDGE && (EDGE..n - EDGE).contains(&i);
        if skipped && i > EDGE {
            continue;
        }
        if !first {
            f.write_str(",")?;
            f.write_str(&if rest.is_empty() { " ".to_owned() } else { format!("\n{:1$}", "", depth + 7) })?;
        }
        first = false;
        if skipped {
            f.write_str("...")?;
        } else {
            write_values(f, &values[i * step..(i + 1) * step], rest, short, depth + 1)?;
        }
    }
    f.write_str("]")
}

fn write_number(f: &mut fmt::Formatter<'_>, value: f64) -> fmt::Result {
    if value.is_finite() && value == value.trunc() && value.abs() < 1e8 {
        write!(f, "{value:.0}.")
    } else if value.is_finite() && (1e-4..1e8).contains(&value.abs()) {
        let text = format!("{value:.4}");
        f.write_str(text.trim_end_matches('0'))
    } else {
        write!(f, "{value:.4e}")
    }
}

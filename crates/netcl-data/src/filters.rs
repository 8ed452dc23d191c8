//! Conversions that inputs of networks need: floats, normalised values, one-hot labels, sequences of one length.

use crate::array::{Array, DType, Element, Elements};
use crate::error::{Error, Result, argument};

/// Numbers as float32; bytes are divided by 255, everything else keeps its value.
///
/// ```
/// use netcl_data::{Array, filters};
///
/// assert_eq!(filters::to_float(&Array::line(vec![0u8, 51, 255])), Array::line(vec![0f32, 0.2, 1.0]));
/// ```
pub fn to_float(array: &Array) -> Array {
    let mut elements = array.to_f32();
    if array.dtype() == DType::U8 {
        elements.iter_mut().for_each(|x| *x /= 255.0);
    }
    shaped(elements, array.shape())
}

/// `(x - mean) / deviation` with one mean and deviation for each channel. The channels of float32 images are the third axis from the end,
/// so it takes images and batches of them.
///
/// # Errors
/// If the array is not float32, has fewer than three axes or another number of channels, or a deviation is 0.
pub fn normalize(mut array: Array, mean: &[f32], deviation: &[f32]) -> Result<Array> {
    let shape = array.shape().to_vec();
    let axes = shape.len();
    let fits = axes >= 3 && mean.len() == shape[axes - 3] && deviation.len() == mean.len() && !deviation.contains(&0.0);
    let dtype = array.dtype();
    let (Some(pixels), true) = (array.slice_mut::<f32>(), fits) else {
        return argument(format!(
            "normalize: {dtype:?} of shape {shape:?} with {} means and {} deviations; it takes F32 of [..., channels, height, width] \
             and one of each for a channel, no deviation 0",
            mean.len(),
            deviation.len()
        ));
    };
    let size = shape[axes - 2] * shape[axes - 1];
    if size > 0 {
        for (plane, channel) in pixels.chunks_exact_mut(size).zip((0..mean.len()).cycle()) {
            plane.iter_mut().for_each(|x| *x = (*x - mean[channel]) / deviation[channel]);
        }
    }
    Ok(array)
}

/// Labels as rows of 0 with a 1 in the place of the class: float32 with one more axis.
///
/// ```
/// use netcl_data::{Array, filters};
///
/// let labels = filters::one_hot(&Array::line(vec![2i64, 0]), 3)?;
/// assert_eq!(labels, Array::new(vec![0f32, 0.0, 1.0, 1.0, 0.0, 0.0], &[2, 3])?);
/// # Ok::<(), netcl_data::Error>(())
/// ```
///
/// # Errors
/// If the labels are no whole numbers, or one is not below `classes`.
pub fn one_hot(labels: &Array, classes: usize) -> Result<Array> {
    let Some(numbers) = labels.to_i64() else {
        return argument(format!("one_hot: labels are whole numbers, not {:?}", labels.dtype()));
    };
    let mut elements: Vec<f32> = Vec::new();
    let size = numbers.len().checked_mul(classes).filter(|&size| elements.try_reserve_exact(size).is_ok());
    let size = size.ok_or_else(|| Error::Argument {
        what: format!("one_hot: {} labels of {classes} classes do not fit into memory", numbers.len()),
    })?;
    elements.resize(size, 0.0);
    for (at, &label) in numbers.iter().enumerate() {
        match usize::try_from(label) {
            Ok(label) if label < classes => elements[at * classes + label] = 1.0,
            _ => return argument(format!("one_hot: label {at} is {label}; there are {classes} classes")),
        }
    }
    Ok(shaped(elements, &[labels.shape(), &[classes]].concat()))
}

/// On which side [`fit`] adds or takes away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Side {
    /// Before the first element.
    Left,
    /// After the last.
    #[default]
    Right,
}

/// A sequence (the first axis) of a length: what is missing is `value`, what is too much is cut off.
///
/// ```
/// use netcl_data::{Array, filters::{self, Side}};
///
/// let tokens = Array::line(vec![5i64, 6, 7]);
/// assert_eq!(filters::fit(&tokens, 5, 0i64, Side::Right)?, Array::line(vec![5i64, 6, 7, 0, 0]));
/// assert_eq!(filters::fit(&tokens, 2, 0i64, Side::Left)?, Array::line(vec![6i64, 7]));
/// # Ok::<(), netcl_data::Error>(())
/// ```
///
/// # Errors
/// If the array has no axis, or its elements are of another type than the value.
pub fn fit<T: Element>(array: &Array, length: usize, value: T, side: Side) -> Result<Array> {
    let (Some((&old, rest)), Some(elements)) = (array.shape().split_first(), array.slice::<T>()) else {
        return argument(format!(
            "fit: a sequence has an axis and elements of the type of its padding; this is {:?} of shape {:?}, padded with {:?}",
            array.dtype(),
            array.shape(),
            T::DTYPE
        ));
    };
    let item: usize = rest.iter().product();
    let kept = old.min(length) * item;
    let padding = vec![value; (length - old.min(length)) * item];
    let elements = match side {
        Side::Right => [&elements[..kept], &padding].concat(),
        Side::Left => [&padding[..], &elements[elements.len() - kept..]].concat(),
    };
    Array::new(elements, &[&[length], rest].concat())
}

/// [`fit`] for a type that is known at run time: bytes, int32, int64, float32 or float64.
///
/// # Errors
/// If the array has no axis, or its elements are of another type.
pub fn fit_number(array: &Array, length: usize, value: f64, side: Side) -> Result<Array> {
    match array.elements() {
        Elements::F32(_) => fit(array, length, value as f32, side),
        Elements::F64(_) => fit(array, length, value, side),
        Elements::I64(_) => fit(array, length, value as i64, side),
        Elements::I32(_) => fit(array, length, value as i32, side),
        Elements::U8(_) => fit(array, length, value as u8, side),
        _ => argument(format!("fit: sequences of {:?} are not padded; convert them first", array.dtype())),
    }
}

/// Sequences of different lengths as one array with a new first axis, padded on the right to the longest, and their lengths (int64).
/// For collate functions.
///
/// # Errors
/// If there are none, or they differ in type or in axes after the first.
pub fn pad_stack(sequences: &[Array], value: f64) -> Result<(Array, Array)> {
    let length = |array: &Array| array.shape().first().copied().unwrap_or(0);
    let longest = sequences.iter().map(length).max().unwrap_or(0);
    let lengths = Array::line(sequences.iter().map(|array| length(array) as i64).collect());
    let padded =
        sequences.iter().map(|array| fit_number(array, longest, value, Side::Right)).collect::<Result<Vec<_>>>()?;
    Ok((Array::stack(&padded)?, lengths))
}

/// Elements with a shape that is known to fit.
fn shaped(elements: Vec<f32>, shape: &[usize]) -> Array {
    Array::new(elements, shape).unwrap_or_else(|_| Array::line(Vec::<f32>::new()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_are_normalised_in_images_and_batches() {
        let image = Array::new(vec![1f32, 2.0, 3.0, 5.0], &[2, 1, 2]).unwrap();
        let expected = [0.0, 1.0, 0.5, 1.5];
        let normalised = normalize(image.clone(), &[1.0, 2.0], &[1.0, 2.0]).unwrap();
        assert_eq!(normalised.slice::<f32>().unwrap(), expected);
        let batch = Array::stack(&[image.clone(), image.clone()]).unwrap();
        let normalised = normalize(batch, &[1.0, 2.0], &[1.0, 2.0]).unwrap();
        assert_eq!(normalised.slice::<f32>().unwrap(), [expected, expected].concat());
        for (mean, deviation) in [(&[1.0][..], &[1.0][..]), (&[1.0, 1.0], &[1.0, 0.0]), (&[1.0, 1.0], &[1.0])] {
            assert!(normalize(image.clone(), mean, deviation).is_err());
        }
        assert!(normalize(Array::new(vec![1u8, 2], &[1, 1, 2]).unwrap(), &[0.0], &[1.0]).is_err());
    }

    #[test]
    fn labels_out_of_range_are_named() {
        let error = |labels: Array| one_hot(&labels, 3).unwrap_err().to_string();
        assert_eq!(error(Array::line(vec![0u8, 3])), "one_hot: label 1 is 3; there are 3 classes");
        assert!(error(Array::line(vec![-1i32])).contains("is -1"));
        assert!(error(Array::line(vec![0.5f32])).contains("not F32"));
        assert_eq!(one_hot(&Array::scalar(1u8), 2).unwrap(), Array::line(vec![0f32, 1.0]));
    }

    #[test]
    fn sequences_get_one_length() {
        let rows = Array::new(vec![1i32, 2, 3, 4], &[2, 2]).unwrap();
        assert_eq!(fit(&rows, 3, 9, Side::Left).unwrap().slice::<i32>().unwrap(), [9, 9, 1, 2, 3, 4]);
        assert_eq!(fit(&rows, 1, 9, Side::Right).unwrap().slice::<i32>().unwrap(), [1, 2]);
        assert!(
            fit(&rows, 3, 0i64, Side::Left).unwrap_err().to_string().contains("I32 of shape [2, 2], padded with I64")
        );
        assert!(fit(&Array::scalar(1i32), 3, 0, Side::Left).is_err());
        let (stacked, lengths) = pad_stack(&[Array::line(vec![1f32]), Array::line(vec![2f32, 3.0])], -1.0).unwrap();
        assert_eq!(stacked, Array::new(vec![1f32, -1.0, 2.0, 3.0], &[2, 2]).unwrap());
        assert_eq!(lengths, Array::line(vec![1i64, 2]));
        assert!(pad_stack(&[], 0.0).is_err() && pad_stack(&[Array::line(vec![true])], 0.0).is_err());
    }
}

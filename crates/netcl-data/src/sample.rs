//! Samples and batches: nested fields of arrays and text, and how samples become a batch.

use crate::array::{Array, Element};
use crate::error::{Error, Result, argument};

/// What a data set gives for a number, and what a loader gives for a batch: an array, a text, or fields of these.
///
/// ```
/// use netcl_data::{Array, Sample};
///
/// let sample = Sample::dict([("image", Array::line(vec![1u8, 2]).into()), ("label", Sample::from(7i64))]);
/// let batch = Sample::collate(vec![sample.clone(), sample])?;
/// assert_eq!(batch.field("image").and_then(Sample::array).unwrap().shape(), [2, 2]);
/// assert_eq!(batch.field("label").and_then(Sample::array).unwrap().slice::<i64>(), Some(&[7, 7][..]));
/// # Ok::<(), netcl_data::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum Sample {
    /// Numbers.
    Array(Array),
    /// A text.
    Text(String),
    /// Fields by position.
    List(Vec<Sample>),
    /// Fields by name, in their order.
    Dict(Vec<(String, Sample)>),
}

impl Sample {
    /// Fields by position.
    pub fn list(fields: impl IntoIterator<Item = Sample>) -> Sample {
        Sample::List(fields.into_iter().collect())
    }

    /// Fields by name.
    pub fn dict<N: Into<String>>(fields: impl IntoIterator<Item = (N, Sample)>) -> Sample {
        Sample::Dict(fields.into_iter().map(|(name, field)| (name.into(), field)).collect())
    }

    /// The array, if it is one.
    pub fn array(&self) -> Option<&Array> {
        if let Sample::Array(array) = self { Some(array) } else { None }
    }

    /// The text, if it is one.
    pub fn text(&self) -> Option<&str> {
        if let Sample::Text(text) = self { Some(text) } else { None }
    }

    /// The field of a name.
    pub fn field(&self, name: &str) -> Option<&Sample> {
        let Sample::Dict(fields) = self else { return None };
        fields.iter().find(|(field, _)| field == name).map(|(_, value)| value)
    }

    /// The field at a position, of a list or of named fields.
    pub fn get(&self, position: usize) -> Option<&Sample> {
        match self {
            Sample::List(fields) => fields.get(position),
            Sample::Dict(fields) => fields.get(position).map(|(_, value)| value),
            Sample::Array(_) | Sample::Text(_) => None,
        }
    }

    /// The field at a position, to be changed.
    pub fn get_mut(&mut self, position: usize) -> Option<&mut Sample> {
        match self {
            Sample::List(fields) => fields.get_mut(position),
            Sample::Dict(fields) => fields.get_mut(position).map(|(_, value)| value),
            Sample::Array(_) | Sample::Text(_) => None,
        }
    }

    /// A batch of samples: arrays are stacked along a new first axis, texts become a list, fields are joined one by one.
    ///
    /// # Errors
    /// If there are no samples, or they differ in fields, types or shapes; the message names the field and the sample.
    pub fn collate(samples: Vec<Sample>) -> Result<Sample> {
        let count = samples.len();
        let differs = |at: usize, expected: &str| {
            argument(format!("collate: sample 0 of the batch is {expected}, sample {at} of {count} is something else"))
        };
        // By the first sample: which of the others is not alike is only looked for when one of them is.
        match samples.first() {
            None => argument("collate: there are no samples to join"),
            Some(Sample::Array(_)) => {
                let mut arrays = Vec::with_capacity(count);
                for (at, sample) in samples.into_iter().enumerate() {
                    let Sample::Array(array) = sample else { return differs(at, "an array") };
                    arrays.push(array);
                }
                Array::stack(&arrays).map(Sample::Array)
            }
            Some(Sample::Text(_)) => match samples.iter().position(|sample| sample.text().is_none()) {
                Some(at) => differs(at, "a text"),
                None => Ok(Sample::List(samples)),
            },
            Some(Sample::List(first)) => {
                let length = first.len();
                let mut columns: Vec<Vec<Sample>> = (0..length).map(|_| Vec::with_capacity(count)).collect();
                for (at, sample) in samples.into_iter().enumerate() {
                    let fields = match sample {
                        Sample::List(fields) if fields.len() == length => fields,
                        _ => return differs(at, &format!("a list of {length} fields")),
                    };
                    for (column, field) in columns.iter_mut().zip(fields) {
                        column.push(field);
                    }
                }
                let joined = |(at, column)| Sample::collate(column).map_err(|error| in_field(&at, error));
                columns.into_iter().enumerate().map(joined).collect::<Result<_>>().map(Sample::List)
            }
            Some(Sample::Dict(first)) => {
                let names: Vec<String> = first.iter().map(|(name, _)| name.clone()).collect();
                let mut columns: Vec<Vec<Sample>> = names.iter().map(|_| Vec::with_capacity(count)).collect();
                for (at, sample) in samples.into_iter().enumerate() {
                    let mut fields = match sample {
                        Sample::Dict(fields) if fields.len() == names.len() => fields,
                        _ => return differs(at, &format!("a dict of {names:?}")),
                    };
                    for (name, column) in names.iter().zip(&mut columns) {
                        // By name: the order of fields may differ from sample to sample.
                        let Some(place) = fields.iter().position(|(field, _)| field == name) else {
                            return differs(at, &format!("a dict of {names:?}"));
                        };
                        column.push(fields.swap_remove(place).1);
                    }
                }
                let joined = |(name, column): (String, Vec<Sample>)| {
                    let field = Sample::collate(column).map_err(|error| in_field(&name, error))?;
                    Ok((name, field))
                };
                names.into_iter().zip(columns).map(joined).collect::<Result<_>>().map(Sample::Dict)
            }
        }
    }
}

fn in_field(name: &dyn std::fmt::Display, error: Error) -> Error {
    Error::Argument { what: format!("field {name}: {error}") }
}

impl From<Array> for Sample {
    fn from(array: Array) -> Sample {
        Sample::Array(array)
    }
}

impl<T: Element> From<T> for Sample {
    fn from(value: T) -> Sample {
        Sample::Array(Array::scalar(value))
    }
}

impl From<&str> for Sample {
    fn from(text: &str) -> Sample {
        Sample::Text(text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_fields_are_stacked_one_by_one() {
        let sample = |i: u8| {
            Sample::list([
                Array::line(vec![i, i + 1]).into(),
                Sample::dict([("name", Sample::from(format!("n{i}").as_str())), ("size", Sample::from(f32::from(i)))]),
            ])
        };
        let batch = Sample::collate(vec![sample(1), sample(5)]).unwrap();
        let expected = Sample::list([
            Array::new(vec![1u8, 2, 5, 6], &[2, 2]).unwrap().into(),
            Sample::dict([
                ("name", Sample::list(["n1".into(), "n5".into()])),
                ("size", Array::line(vec![1f32, 5.0]).into()),
            ]),
        ]);
        assert_eq!(batch, expected);
        let names = batch.get(1).and_then(|fields| fields.field("name")).and_then(|names| names.get(1));
        assert_eq!(names.and_then(Sample::text), Some("n5"));
    }

    #[test]
    fn named_fields_may_come_in_any_order() {
        let one = Sample::dict([("a", Sample::from(1u8)), ("b", Sample::from(2i64))]);
        let two = Sample::dict([("b", Sample::from(4i64)), ("a", Sample::from(3u8))]);
        let batch = Sample::collate(vec![one, two]).unwrap();
        assert_eq!(batch.field("b").and_then(Sample::array).unwrap().slice(), Some(&[2i64, 4][..]));
    }

    #[test]
    fn samples_that_differ_are_refused_with_their_field() {
        let error = |samples: Vec<Sample>| Sample::collate(samples).unwrap_err().to_string();
        let fields = |x: Sample| Sample::dict([("x", x)]);
        let text = error(vec![fields(Array::line(vec![0u8]).into()), fields(Array::line(vec![0u8, 1]).into())]);
        assert!(text.starts_with("field x: stack: sample 0 of the batch is U8 [1], sample 1 is U8 [2]"), "{text}");
        assert!(error(vec![1u8.into(), "a".into()]).contains("is an array, sample 1 of 2"));
        assert!(error(vec!["a".into(), 1u8.into()]).contains("is a text, sample 1"));
        assert!(error(vec![fields(1u8.into()), Sample::dict([("y", 1u8.into())])]).contains(r#"a dict of ["x"]"#));
        assert!(error(vec![Sample::list([]), Sample::list([1u8.into()])]).contains("a list of 0 fields"));
        assert!(error(vec![]).contains("no samples"));
    }
}

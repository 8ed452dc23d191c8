//! Tables from CSV files.

use std::io::BufReader;
use std::path::Path;

use crate::array::Array;
use crate::dataset::Dataset;
use crate::error::{Error, Result, argument};
use crate::file;
use crate::sample::Sample;

/// How a CSV file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CsvOptions {
    /// What separates fields.
    pub delimiter: u8,
    /// Whether the first line has the columns' names; otherwise they are called by their numbers, from 0.
    pub header: bool,
}

impl Default for CsvOptions {
    /// Commas, with names.
    fn default() -> CsvOptions {
        CsvOptions { delimiter: b',', header: true }
    }
}

/// The content of a column.
#[derive(Clone, Debug, PartialEq)]
pub enum Column {
    /// Whole numbers (int64) or floats (float32), one for each row.
    Numbers(Array),
    /// Anything else.
    Texts(Vec<String>),
}

/// A table of named columns; as a data set, its samples are rows of named fields.
///
/// A column of whole numbers is int64, one of numbers float32 (an empty field is NaN), every other one text.
///
/// ```
/// use netcl_data::{CsvOptions, Dataset, Table, TensorDataset};
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("iris.csv");
/// # std::fs::write(&path, "length,width,kind\n5.1,3.5,setosa\n7,3.2,virginica\n4.9,3,setosa\n").unwrap();
///
/// let table = Table::read(&path, CsvOptions::default())?;
/// let inputs = table.matrix(&["length", "width"])?;
/// let (labels, classes) = table.classes("kind")?;
/// assert_eq!((inputs.shape(), classes), (&[3, 2][..], vec!["setosa".to_owned(), "virginica".to_owned()]));
/// assert_eq!(labels.slice(), Some(&[0i64, 1, 0][..]));
/// let set = TensorDataset::new(vec![inputs, labels])?;
/// assert_eq!((set.len(), table.get(1)?.field("kind").and_then(|kind| kind.text())), (3, Some("virginica")));
/// # Ok::<(), netcl_data::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    names: Vec<String>,
    columns: Vec<Column>,
    rows: usize,
}

/// What all fields of a column are, from the narrowest to the widest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Whole,
    Float,
    Text,
}

impl Kind {
    fn of(field: &str) -> Kind {
        let field = field.trim();
        if field.parse::<i64>().is_ok() {
            Kind::Whole
        } else if field.is_empty() || field.parse::<f32>().is_ok() {
            Kind::Float
        } else {
            Kind::Text
        }
    }
}

impl Table {
    /// Reads a file.
    ///
    /// It is read twice, first for the types of the columns: so numbers never exist as texts in memory, which would take many
    /// times as much.
    ///
    /// # Errors
    /// If it cannot be read, has no rows, or a row has another number of fields; the message names the line.
    pub fn read(path: impl AsRef<Path>, options: CsvOptions) -> Result<Table> {
        let path = path.as_ref();
        let malformed = |what: String| Error::Malformed { path: path.to_owned(), expected: "CSV table", what };
        let failed = |error: csv::Error| malformed(error.to_string());
        let open = || {
            let (file, _) = file::open(path)?;
            let mut builder = csv::ReaderBuilder::new();
            Ok(builder.delimiter(options.delimiter).has_headers(options.header).from_reader(BufReader::new(file)))
        };
        let mut reader: csv::Reader<BufReader<std::fs::File>> = open()?;
        let first = reader.headers().map_err(failed)?;
        let name = |(at, name): (usize, &str)| if options.header { name.trim().to_owned() } else { at.to_string() };
        let names: Vec<String> = first.iter().enumerate().map(name).collect();
        if let Some(twice) = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name)) {
            return Err(malformed(format!("two of its columns are called {:?}", twice.1)));
        }
        let mut kinds = vec![Kind::Whole; names.len()];
        let mut record = csv::StringRecord::new();
        while reader.read_record(&mut record).map_err(failed)? {
            for (kind, field) in kinds.iter_mut().zip(&record) {
                // What is text already stays so.
                if *kind != Kind::Text {
                    *kind = (*kind).max(Kind::of(field));
                }
            }
        }
        let mut fields: Vec<Fields> = kinds.iter().map(|kind| Fields::new(*kind)).collect();
        let (mut reader, mut rows) = (open()?, 0);
        while reader.read_record(&mut record).map_err(failed)? {
            rows += 1;
            for ((fields, field), name) in fields.iter_mut().zip(&record).zip(&names) {
                fields
                    .push(field)
                    .ok_or_else(|| malformed(format!("its column {name:?} changed while it was read")))?;
            }
        }
        if rows == 0 {
            return Err(malformed("it has no rows".to_owned()));
        }
        let columns = fields.into_iter().map(Fields::finish).collect();
        Ok(Table { names, columns, rows })
    }

    /// The names of the columns.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The column of a name.
    ///
    /// # Errors
    /// If there is none.
    pub fn column(&self, name: &str) -> Result<&Column> {
        match self.names.iter().position(|column| column == name) {
            Some(at) => Ok(&self.columns[at]),
            None => argument(format!("Table: there is no column {name:?}; the columns are {:?}", self.names)),
        }
    }

    /// Columns of numbers side by side: float32 of shape `[rows, columns]`.
    ///
    /// # Errors
    /// If there is no such column, or it has text.
    pub fn matrix<N: AsRef<str>>(&self, names: &[N]) -> Result<Array> {
        let mut elements = vec![0f32; self.rows * names.len()];
        for (at, name) in names.iter().enumerate() {
            let name = name.as_ref();
            let Column::Numbers(numbers) = self.column(name)? else {
                return argument(format!("Table: the column {name:?} has text; take its classes or leave it out"));
            };
            for (row, number) in numbers.to_f32().into_iter().enumerate() {
                elements[row * names.len() + at] = number;
            }
        }
        Array::new(elements, &[self.rows, names.len()])
    }

    /// A column as labels (int64), with the names of the classes in alphabetical order, or of whole numbers in theirs.
    ///
    /// # Errors
    /// If there is no such column, or it has numbers that are not whole.
    pub fn classes(&self, name: &str) -> Result<(Array, Vec<String>)> {
        fn labels<T: Ord>(values: &[T]) -> (Array, Vec<&T>) {
            let mut classes: Vec<&T> = values.iter().collect();
            classes.sort();
            classes.dedup();
            let label = |value: &T| classes.binary_search(&value).map_or(0, |label| label as i64);
            (Array::line(values.iter().map(label).collect()), classes)
        }
        match self.column(name)? {
            Column::Texts(texts) => {
                let (labels, classes) = labels(texts);
                Ok((labels, classes.into_iter().cloned().collect()))
            }
            Column::Numbers(numbers) => match numbers.slice::<i64>() {
                Some(numbers) => {
                    let (labels, classes) = labels(numbers);
                    Ok((labels, classes.into_iter().map(i64::to_string).collect()))
                }
                None => {
                    argument(format!("Table: the column {name:?} has numbers that are no classes: not all are whole"))
                }
            },
        }
    }
}

/// A column while it is read.
enum Fields {
    Whole(Vec<i64>),
    Float(Vec<f32>),
    Text(Vec<String>),
}

impl Fields {
    fn new(kind: Kind) -> Fields {
        match kind {
            Kind::Whole => Fields::Whole(Vec::new()),
            Kind::Float => Fields::Float(Vec::new()),
            Kind::Text => Fields::Text(Vec::new()),
        }
    }

    /// None if the field is not of the column's kind.
    fn push(&mut self, field: &str) -> Option<()> {
        match self {
            Fields::Whole(numbers) => numbers.push(field.trim().parse().ok()?),
            Fields::Float(numbers) if field.trim().is_empty() => numbers.push(f32::NAN),
            Fields::Float(numbers) => numbers.push(field.trim().parse().ok()?),
            Fields::Text(texts) => texts.push(field.to_owned()),
        }
        Some(())
    }

    fn finish(self) -> Column {
        match self {
            Fields::Whole(numbers) => Column::Numbers(Array::line(numbers)),
            Fields::Float(numbers) => Column::Numbers(Array::line(numbers)),
            Fields::Text(texts) => Column::Texts(texts),
        }
    }
}

impl Dataset for Table {
    type Item = Sample;

    fn len(&self) -> usize {
        self.rows
    }

    fn get(&self, index: usize) -> Result<Sample> {
        let missing = Error::Index { index, len: self.rows };
        if index >= self.rows {
            return Err(missing);
        }
        let field = |column: &Column| {
            Ok(match column {
                Column::Numbers(numbers) => numbers.row(index)?.into(),
                Column::Texts(texts) => texts[index].as_str().into(),
            })
        };
        let fields = self.names.iter().zip(&self.columns).map(|(name, column)| Ok((name.clone(), field(column)?)));
        fields.collect::<Result<_>>().map(Sample::Dict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(content: &str, options: CsvOptions) -> Result<Table> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.csv");
        std::fs::write(&path, content).unwrap();
        Table::read(&path, options)
    }

    #[test]
    fn columns_get_the_narrowest_type_that_holds_them() {
        let table = read("a, b ,c,d\n1,2.5,\"x, y\",7\n-3,,z,1e3\n", CsvOptions::default()).unwrap();
        assert_eq!(table.names(), ["a", "b", "c", "d"]);
        assert_eq!(table.column("a").unwrap(), &Column::Numbers(Array::line(vec![1i64, -3])));
        assert_eq!(table.column("d").unwrap(), &Column::Numbers(Array::line(vec![7f32, 1000.0])));
        assert_eq!(table.column("c").unwrap(), &Column::Texts(vec!["x, y".to_owned(), "z".to_owned()]));
        let matrix = table.matrix(&["a", "b"]).unwrap();
        assert_eq!(matrix.slice::<f32>().unwrap()[..3], [1.0, 2.5, -3.0]);
        assert!(matrix.slice::<f32>().unwrap()[3].is_nan());
        assert_eq!(table.classes("a").unwrap().1, ["-3", "1"]);
        assert!(table.get(2).is_err());

        let options = CsvOptions { delimiter: b';', header: false };
        let table = read("1;2\n3;4\n", options).unwrap();
        assert_eq!((table.names(), table.len()), (&["0".to_owned(), "1".to_owned()][..], 2));
        assert_eq!(table.get(1).unwrap().field("1"), Some(&Sample::from(4i64)));
    }

    #[test]
    fn wrong_files_and_columns_are_named() {
        let error = |content: &str| read(content, CsvOptions::default()).unwrap_err().to_string();
        assert!(error("a,b\n1,2\n3\n").contains("line: 3"), "{}", error("a,b\n1,2\n3\n"));
        assert!(error("a,b\n").contains("has no rows") && error("").contains("has no rows"));
        assert!(error("a,a\n1,2\n").contains("two of its columns are called \"a\""));
        let table = read("a,b\n1,x\n", CsvOptions::default()).unwrap();
        assert!(table.matrix(&["b"]).unwrap_err().to_string().contains("has text"));
        assert!(table.matrix(&["q"]).unwrap_err().to_string().contains(r#"the columns are ["a", "b"]"#));
        let floats = read("a\n0.5\n", CsvOptions::default()).unwrap();
        assert!(floats.classes("a").unwrap_err().to_string().contains("not all are whole"));
    }
}

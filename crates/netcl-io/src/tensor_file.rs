//! Files of named tensors of any kind: recognised by their content, read one tensor at a time.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::archive::Archive;
use crate::array::{Array, dense};
use crate::bytes::Bytes;
use crate::directory;
use crate::error::{Error, Result};
use crate::npy::swap;
use crate::tensors::{Info, Tensors};
use crate::{npz, safetensors, shards, torch};

/// The kinds of files that hold named tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An NPZ archive with metadata: this crate's own.
    Netcl,
    /// NumPy's archive.
    Npz,
    /// A safetensors file.
    SafeTensors,
    /// A JSON file that says in which safetensors file each tensor is, as Hugging Face writes it.
    SafeTensorsIndex,
    /// A file of PyTorch's `torch.save`: the ZIP file of versions since 1.6, or the one before.
    Torch,
}

/// What the names of files end with, the longer ones first.
const ENDINGS: [(&str, Kind); 6] = [
    (".safetensors.index.json", Kind::SafeTensorsIndex),
    (".safetensors", Kind::SafeTensors),
    (".netcl", Kind::Netcl),
    (".npz", Kind::Npz),
    (".pth", Kind::Torch),
    (".pt", Kind::Torch),
];

impl Kind {
    /// The kind that a file of this name should get; `None` for other names.
    ///
    /// ```
    /// use netcl_io::Kind;
    ///
    /// assert_eq!(Kind::of_name("model.safetensors".as_ref()), Some(Kind::SafeTensors));
    /// assert_eq!(Kind::of_name("model.txt".as_ref()), None);
    /// ```
    pub fn of_name(path: &Path) -> Option<Kind> {
        let name = path.file_name()?.to_string_lossy().to_lowercase();
        ENDINGS.iter().find(|(ending, _)| name.ends_with(ending)).map(|&(_, kind)| kind)
    }

    /// The endings that [`Kind::of_name`] knows, to be listed in an error.
    pub fn endings() -> String {
        ENDINGS.map(|(ending, _)| ending).join(", ")
    }

    /// A name for people.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Netcl => "netcl",
            Kind::Npz => "npz",
            Kind::SafeTensors => "safetensors",
            Kind::SafeTensorsIndex => "safetensors in shards",
            Kind::Torch => "PyTorch",
        }
    }
}

/// What the members of a file of some length may unpack to. Ours are not compressed, and trained weights hardly can be; the
/// constant is for zeros that someone compressed.
pub(crate) fn largest_unpacked(length: usize) -> u64 {
    (length as u64).saturating_mul(16).saturating_add(64 << 20)
}

/// What the metadata may unpack to: parsed JSON takes several times the memory of its text.
pub(crate) fn largest_metadata(length: usize) -> u64 {
    (length as u64).saturating_add(16 << 20)
}

/// A file of named tensors of which only the directory and the metadata were read.
///
/// ```
/// use netcl_io::{Archive, Array, Kind, Tensors};
///
/// let path = std::env::temp_dir().join(format!("netcl-open-{}.netcl", std::process::id()));
/// let mut archive = Archive::default();
/// archive.insert("rate", Array::scalar(0.1));
/// archive.write(&path)?;
///
/// let file = netcl_io::open(&path)?;
/// assert_eq!((file.kind(), file.infos()[0].name.as_str()), (Kind::Netcl, "rate"));
/// assert_eq!(file.read(0)?, Array::scalar(0.1));
/// # std::fs::remove_file(path).unwrap();
/// # Ok::<(), netcl_io::Error>(())
/// ```
#[derive(Debug)]
pub struct TensorFile {
    path: PathBuf,
    kind: Kind,
    metadata: Map<String, Value>,
    infos: Vec<Info>,
    places: Vec<Place>,
    /// The index of each name.
    names: HashMap<String, usize>,
}

/// Where the elements of a tensor are, and in which order.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) storage: Storage,
    /// The bytes of the storage before the first element.
    pub(crate) offset: usize,
    /// Counted in elements; `None` for dense elements in row-major order.
    pub(crate) strides: Option<Vec<usize>>,
    pub(crate) big_endian: bool,
}

/// Bytes of a file that one or more tensors are in.
#[derive(Clone, Debug)]
pub(crate) enum Storage {
    Part(Bytes),
    Member(Bytes, Arc<directory::Entry>),
}

/// What a reader of one kind of file gives; the errors of readers say what is wrong with the file, whose path they do not know.
pub(crate) struct Found {
    pub(crate) kind: Kind,
    pub(crate) metadata: Map<String, Value>,
    pub(crate) tensors: Vec<(Info, Place)>,
}

/// Opens a file of named tensors, whatever it is called: `.netcl`, `.npz`, safetensors, an index of safetensors files, or a
/// PyTorch file. Nothing but the names, types, shapes and metadata is read.
///
/// # Errors
/// If the file cannot be read, is of no known kind, or its directory, header or metadata are damaged, of a newer version, or
/// claim more than such a file can hold.
pub fn open(path: impl AsRef<Path>) -> Result<TensorFile> {
    let path = path.as_ref();
    let content = Bytes::of_file(path)?;
    let malformed = |what| Error::Malformed { path: path.to_owned(), what };
    let found = if content.starts_with(b"PK") {
        npz::open(&content)
    } else if torch::is_legacy(&content) {
        torch::open_legacy(&content)
    } else if let Some(index) = shards::index(&content) {
        return index.map_err(malformed)?.open(path);
    } else if safetensors::is_safetensors(&content) {
        safetensors::open(&content)
    } else {
        Err(unknown(&content))
    };
    TensorFile::new(path, found.map_err(malformed)?).map_err(malformed)
}

/// What a file is that is none of ours.
fn unknown(content: &[u8]) -> String {
    let is = match content {
        [] => "it is empty",
        content if content.starts_with(b"version https://git-lfs") => {
            "it is a pointer of Git LFS, not the file itself: run `git lfs pull`"
        }
        content if content.starts_with(b"\x93NUMPY") => "it is a single array: use np.savez instead of np.save",
        content if content.starts_with(b"\x89HDF") => "it is an HDF5 file",
        content if content.starts_with(b"GGUF") => "it is a GGUF file",
        _ => "it is of no known kind",
    };
    format!("{is}; read are .netcl and .npz archives, safetensors (also in shards) and PyTorch files")
}

impl TensorFile {
    pub(crate) fn new(path: &Path, found: Found) -> Result<TensorFile, String> {
        let Found { kind, metadata, tensors } = found;
        let (infos, places): (Vec<Info>, Vec<Place>) = tensors.into_iter().unzip();
        let mut names = HashMap::with_capacity(infos.len());
        for (index, info) in infos.iter().enumerate() {
            if names.insert(info.name.clone(), index).is_some() {
                return Err(format!("two of its tensors have the name {:?}", info.name));
            }
        }
        Ok(TensorFile { path: path.to_owned(), kind, metadata, infos, places, names })
    }

    /// What kind of file it is, by its content.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The index of a name.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.names.get(name).copied()
    }

    /// The bytes of all tensors, as the file states them.
    pub fn size(&self) -> u64 {
        self.infos.iter().map(Info::size).fold(0, u64::saturating_add)
    }

    /// Reads all tensors. What is not compressed stays in the file, mapped, until someone needs it.
    ///
    /// # Errors
    /// If a tensor is damaged, or of an element type that no dtype holds.
    pub fn read_all(&self) -> Result<Archive> {
        let mut archive = Archive::new(self.metadata.clone());
        for (index, info) in self.infos.iter().enumerate() {
            archive.insert(info.name.clone(), self.read(index)?);
        }
        archive.path = self.path.clone();
        Ok(archive)
    }

    fn elements(&self, info: &Info, place: &Place) -> Result<Array, String> {
        let storage = match &place.storage {
            Storage::Part(bytes) => bytes.clone(),
            Storage::Member(file, entry) => entry.content(file)?,
        };
        let size = info.element.size();
        let mut bytes = match &place.strides {
            None => {
                let end = usize::try_from(info.size()).ok().and_then(|size| place.offset.checked_add(size));
                end.and_then(|end| storage.part(place.offset..end)).ok_or("it reaches past its storage")?
            }
            Some(strides) => {
                let rest = storage.get(place.offset..).ok_or("it begins past its storage")?;
                dense(rest, size, &info.shape, strides)?.into()
            }
        };
        if place.big_endian {
            swap(&mut bytes, size);
        }
        let (dtype, bytes) = info.element.widen(bytes)?;
        Ok(Array { dtype, shape: info.shape.clone(), bytes })
    }
}

impl Tensors for TensorFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn metadata(&self) -> &Map<String, Value> {
        &self.metadata
    }

    fn infos(&self) -> &[Info] {
        &self.infos
    }

    fn read(&self, index: usize) -> Result<Array> {
        let (info, place) = (&self.infos[index], &self.places[index]);
        self.elements(info, place).map_err(|what| {
            let what = format!("its tensor {:?} cannot be read: {what}", info.name);
            Error::Malformed { path: self.path.clone(), what }
        })
    }
}

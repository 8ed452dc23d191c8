//! Reads `.netcl` files from whoever made them: the directory and the metadata first, the arrays only where their sizes fit.
//!
//! A deflated member unpacks to a thousand times its length, members may share their bytes, and a directory may state anything.
//! So nothing is unpacked before the stated sizes were compared with the length of the file, and no member is read further than
//! its stated size.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use netcl_nn::autograd::DType;
use serde_json::{Map, Value};

use crate::archive::{Archive, METADATA, NPY, VERSION};
use crate::directory::{self, Entry};
use crate::error::{Error, Result};
use crate::npy::{Content, parse};

/// What the members of a file of some length may unpack to. Ours are not compressed, and trained weights hardly can be; the
/// constant is for zeros that someone compressed.
fn largest_unpacked(length: u64) -> u64 {
    length.saturating_mul(16).saturating_add(64 << 20)
}

/// What the metadata may unpack to: parsed JSON takes several times the memory of its text.
fn largest_metadata(length: u64) -> u64 {
    length.saturating_add(16 << 20)
}

/// A `.netcl` file of which only the directory and the metadata were read.
///
/// ```
/// use netcl_io::{Archive, Array, Reader};
///
/// let path = std::env::temp_dir().join(format!("netcl-reader-{}.netcl", std::process::id()));
/// let mut archive = Archive::default();
/// archive.insert("rate", Array::scalar(0.1));
/// archive.write(&path)?;
/// let reader = Reader::open(&path)?;
/// assert!(reader.size() >= 8);
/// assert_eq!(reader.read()?.get("rate"), Some(&Array::scalar(0.1)));
/// # std::fs::remove_file(path).unwrap();
/// # Ok::<(), netcl_io::Error>(())
/// ```
pub struct Reader {
    path: PathBuf,
    file: BufReader<File>,
    members: Vec<Member>,
    metadata: Map<String, Value>,
    dtypes: BTreeMap<String, DType>,
}

/// An entry of the directory and its name without the extension.
struct Member {
    name: String,
    entry: Entry,
}

impl Member {
    fn unpack(&self, file: &mut BufReader<File>) -> Result<Vec<u8>, String> {
        self.entry.unpack(file).map_err(|reason| format!("its entry {:?} is damaged ({reason})", self.name))
    }
}

impl Reader {
    /// Reads the directory and the metadata.
    ///
    /// # Errors
    /// If the file cannot be read, is no NPZ archive, has no metadata, is of a newer format, has two members of one name, or
    /// unpacks to far more than its length.
    pub fn open(path: &Path) -> Result<Reader> {
        let unreadable = |reason| Error::Read { path: path.to_owned(), reason };
        let file = File::open(path).map_err(unreadable)?;
        let length = file.metadata().map_err(unreadable)?.len();
        Reader::of_file(path, file, length).map_err(|what| Error::Malformed { path: path.to_owned(), what })
    }

    fn of_file(path: &Path, file: File, length: u64) -> Result<Reader, String> {
        let mut file = BufReader::new(file);
        let entries = directory::read(&mut file, length);
        let mut members = members(entries.map_err(|what| format!("it is no NPZ archive ({what})"))?, length)?;
        let metadata = members.iter().position(|member| member.name == METADATA);
        let metadata = members.remove(metadata.ok_or_else(|| format!("it has no entry {METADATA:?}"))?);
        if metadata.entry.size > largest_metadata(length) {
            let size = metadata.entry.size;
            return Err(format!("its metadata unpacks to {size} bytes, too many for a file of {length}"));
        }
        let mut metadata = read_metadata(&metadata.unpack(&mut file)?)?;
        let dtypes = take_dtypes(&mut metadata);
        Ok(Reader { path: path.to_owned(), file, members, metadata, dtypes })
    }

    /// What the file says of itself, apart from the format's own entries.
    pub fn metadata(&self) -> &Map<String, Value> {
        &self.metadata
    }

    /// The bytes of all arrays as the directory states them, headers included.
    pub fn size(&self) -> u64 {
        self.members.iter().map(|member| member.entry.size).sum()
    }

    /// Reads all arrays.
    ///
    /// # Errors
    /// If an array is damaged or of a kind that is not read.
    pub fn read(mut self) -> Result<Archive> {
        let malformed = |what| Error::Malformed { path: self.path.clone(), what };
        let mut archive = Archive::new(self.metadata);
        for member in &self.members {
            let name = &member.name;
            let content = member.unpack(&mut self.file).map_err(malformed)?;
            let content = parse(&content, self.dtypes.get(name).copied())
                .map_err(|what| malformed(format!("its array {name:?} cannot be used: {what}")))?;
            if let Content::Array(array) = content {
                archive.insert(dotted(name), array);
            }
        }
        archive.path = self.path;
        Ok(archive)
    }

    /// [`Reader::read`] for a model of so many numbers, alone or with the state of an optimizer.
    ///
    /// # Errors
    /// As [`Reader::read`], and if the arrays are far larger than that.
    pub fn read_for(self, numbers: usize) -> Result<Archive> {
        // Eight bytes for each number and each of up to three states of an optimizer, and room for headers and other models.
        let most = (numbers as u64).saturating_mul(32).saturating_add(16 << 20);
        if self.size() > most {
            let size = self.size();
            let what = format!("its arrays have {size} bytes, far more than a model of {numbers} numbers needs");
            return Err(Error::Malformed { path: self.path, what });
        }
        self.read()
    }
}

/// netcl 0.4 writes "0:weight" for what is called "0.weight" here.
fn dotted(name: &str) -> String {
    name.replace(':', ".")
}

/// The members of a file of some length, checked against it and each other.
fn members(entries: Vec<Entry>, length: u64) -> Result<Vec<Member>, String> {
    let (mut members, mut names) = (Vec::with_capacity(entries.len()), HashSet::with_capacity(entries.len()));
    let (mut packed, mut unpacked) = (0u64, 0u64);
    for entry in entries {
        let Some(name) = entry.name.strip_suffix(NPY).map(str::to_owned) else {
            return Err(format!("its entry {:?} is no array", entry.name));
        };
        if !names.insert(dotted(&name)) {
            return Err(format!("two of its entries have the name {:?}", dotted(&name)));
        }
        packed = packed.saturating_add(entry.packed);
        unpacked = unpacked.saturating_add(entry.size);
        members.push(Member { name, entry });
    }
    if packed > length {
        return Err(format!("its entries have {packed} bytes, more than the {length} of the file: they overlap"));
    }
    if unpacked > largest_unpacked(length) {
        return Err(format!("its entries unpack to {unpacked} bytes, too many for a file of {length}"));
    }
    Ok(members)
}

fn read_metadata(content: &[u8]) -> Result<Map<String, Value>, String> {
    let Content::Text(text) = parse(content, None).map_err(|what| format!("its metadata cannot be read: {what}"))?
    else {
        return Err("its metadata is no text".to_owned());
    };
    let mut metadata = match serde_json::from_str(&text) {
        Ok(Value::Object(metadata)) => metadata,
        Ok(_) => return Err("its metadata is JSON, but no object".to_owned()),
        Err(error) => return Err(format!("its metadata is no JSON ({error})")),
    };
    for key in ["format", "netcl"] {
        metadata.remove(key);
    }
    match metadata.remove("version").as_ref().and_then(Value::as_u64) {
        Some(version) if version > VERSION => Err(format!(
            "it has version {version} of the format, this program reads versions up to {VERSION}; use a newer netcl"
        )),
        _ => Ok(metadata),
    }
}

/// The dtypes by array; those of unknown names are left to the arrays themselves.
fn take_dtypes(metadata: &mut Map<String, Value>) -> BTreeMap<String, DType> {
    let Some(Value::Object(dtypes)) = metadata.remove("dtypes") else { return BTreeMap::new() };
    dtypes.iter().filter_map(|(name, dtype)| Some((name.clone(), DType::parse(dtype.as_str()?).ok()?))).collect()
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, SeekFrom, Write};

    use zip::write::SimpleFileOptions;
    use zip::{CompressionMethod, ZipWriter};

    use super::*;
    use crate::npy::{Array, text_to_npy};

    fn pack(path: &Path, entries: &[(String, Vec<u8>)]) {
        let mut zip = ZipWriter::new(File::create(path).unwrap());
        for (name, content) in entries {
            zip.start_file(name.as_str(), SimpleFileOptions::default().compression_method(CompressionMethod::Deflated))
                .unwrap();
            zip.write_all(content).unwrap();
        }
        zip.finish().unwrap();
    }

    fn meta(json: &str) -> (String, Vec<u8>) {
        ("__netcl_meta__.npy".to_owned(), text_to_npy(json))
    }

    fn zeros(count: usize) -> Vec<u8> {
        Array { dtype: DType::U8, shape: vec![count], bytes: vec![0; count] }.to_npy()
    }

    fn refused(path: &Path) -> String {
        Reader::open(path).err().unwrap().to_string()
    }

    #[test]
    fn what_unpacks_to_far_more_than_the_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.netcl");
        // Within the constant: zeros that someone compressed.
        pack(&path, &[meta("{}"), ("w.npy".to_owned(), zeros(32 << 20))]);
        assert_eq!(Reader::open(&path).unwrap().read().unwrap().get("w").unwrap().bytes.len(), 32 << 20);
        let text = Reader::open(&path).unwrap().read_for(1000).unwrap_err().to_string();
        assert!(text.contains("far more than a model of 1000 numbers"), "{text}");
        pack(&path, &[meta("{}"), ("w.npy".to_owned(), zeros(80 << 20))]);
        assert!(refused(&path).contains("too many for a file"), "{}", refused(&path));
        pack(&path, &[meta(&format!("{{\"a\": \"{}\"}}", " ".repeat(5 << 20)))]);
        assert!(refused(&path).contains("its metadata unpacks to"), "{}", refused(&path));
    }

    /// The positions of the directory's entries.
    fn entries(content: &[u8]) -> Vec<usize> {
        (0..content.len() - 4).filter(|&at| content[at..at + 4] == *b"PK\x01\x02").collect()
    }

    #[test]
    fn a_directory_that_lies_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.netcl");
        pack(&path, &[("w.npy".to_owned(), zeros(100_000)), ("v.npy".to_owned(), zeros(100_000)), meta("{}")]);
        let whole = std::fs::read(&path).unwrap();
        let [first, second, _] = entries(&whole)[..] else { panic!("three entries") };
        let patched = |patches: &[(usize, &[u8])]| {
            let mut content = whole.clone();
            for (at, bytes) in patches {
                content[*at..at + bytes.len()].copy_from_slice(bytes);
            }
            std::fs::write(&path, content).unwrap();
        };
        // The unpacked size: the member goes on, or ends before.
        for size in [99_999u32, 100_200] {
            patched(&[(first + 24, &size.to_le_bytes())]);
            let text = Reader::open(&path).unwrap().read().unwrap_err().to_string();
            assert!(text.contains("\"w\" is damaged"), "{text}");
        }
        // Both members in the same bytes, up to the directory.
        let (length, offset) = ((first as u32 - 30).to_le_bytes(), &whole[first + 42..first + 46].to_vec());
        patched(&[(first + 20, &length), (second + 20, &length), (second + 42, offset)]);
        assert!(refused(&path).contains("they overlap"), "{}", refused(&path));
        // A member in the directory itself, one that is encrypted, one of another method.
        patched(&[(second + 42, &(first as u32 - 40).to_le_bytes())]);
        assert!(refused(&path).contains("\"v.npy\" lies outside of it"), "{}", refused(&path));
        patched(&[(second + 8, &[1])]);
        assert!(refused(&path).contains("entry 1 of its directory is damaged"), "{}", refused(&path));
        patched(&[(second + 10, &[12])]);
        assert!(refused(&path).contains("entry 1 of its directory is damaged"), "{}", refused(&path));
        // The same name twice.
        patched(&[(second + 46, b"w")]);
        assert!(refused(&path).contains("two of its entries have the name \"w\""), "{}", refused(&path));
    }

    #[test]
    fn names_that_become_the_same_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.netcl");
        pack(&path, &[("0:w.npy".to_owned(), zeros(3)), ("0.w.npy".to_owned(), zeros(3)), meta("{}")]);
        assert!(refused(&path).contains("the name \"0.w\""), "{}", refused(&path));
    }

    #[test]
    fn many_members_take_no_longer_each() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.netcl");
        let entry = Array::scalar(1.0).to_npy();
        // More than 16 bits can count, so that the directory has an end of 64 bits.
        let members: Vec<_> = (0..70_000).map(|i| (format!("{i}.npy"), entry.clone())).chain([meta("{}")]).collect();
        pack(&path, &members);
        let start = std::time::Instant::now();
        let archive = Archive::read(&path).unwrap();
        assert_eq!((archive.names().count(), archive.get("69999")), (70_000, Some(&Array::scalar(1.0))));
        // Far below a second; searching the list for every name took a minute.
        assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
    }

    #[test]
    fn a_directory_of_billions_of_entries_takes_no_memory() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.netcl");
        pack(&path, &[("w.npy".to_owned(), zeros(10)), meta("{}")]);
        let mut file = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
        // Replaces the end of the directory by one of 64 bits that claims billions of entries far behind the file.
        file.seek(SeekFrom::End(-22)).unwrap();
        let at = file.stream_position().unwrap();
        for (size, start) in [(1u64 << 46, 1u64 << 46), (46 << 33, 1 << 33), (46 << 33, 1 << 62)] {
            let mut end = b"PK\x06\x06".to_vec();
            end.extend(44u64.to_le_bytes());
            end.extend([45, 0, 45, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            for number in [1u64 << 33, 1 << 33, size, start] {
                end.extend(number.to_le_bytes());
            }
            end.extend(b"PK\x06\x07\0\0\0\0");
            end.extend(at.to_le_bytes());
            end.extend(1u32.to_le_bytes());
            end.extend(b"PK\x05\x06\0\0\0\0");
            end.extend([255; 12]);
            end.extend([0, 0]);
            file.seek(SeekFrom::Start(at)).unwrap();
            file.write_all(&end).unwrap();
            assert!(refused(&path).contains("no NPZ archive"), "{}", refused(&path));
        }
    }
}

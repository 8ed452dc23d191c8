//! NPZ archives whoever made them, with this crate's metadata (`.netcl`) or without: the directory first, the arrays only where
//! their sizes fit.
//!
//! A deflated member unpacks to a thousand times its length, members may share their bytes, and a directory may state anything.
//! So nothing is unpacked before the stated sizes were compared with the length of the file, and no member is read further than
//! its stated size.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use netcl_nn::autograd::DType;
use serde_json::{Map, Value};

use crate::archive::{METADATA, NPY, VERSION};
use crate::bytes::Bytes;
use crate::directory::{self, Entry};
use crate::npy::{ElementKind, Header, LONGEST_HEADER, text_of};
use crate::tensor_file::{Found, Kind, Place, Storage, largest_metadata, largest_unpacked};
use crate::tensors::Info;
use crate::{published, torch};

/// Opens a ZIP file.
pub(crate) fn open(file: &Bytes) -> Result<Found, String> {
    let entries = directory::read(file).map_err(|what| format!("it is no NPZ archive or PyTorch file ({what})"))?;
    check(&entries, file.len())?;
    if torch::is_zip(&entries) {
        return torch::open_zip(file, entries);
    }
    let named = |entry: Entry| match entry.name.strip_suffix(NPY) {
        Some(name) => Ok((name.to_owned(), entry)),
        None => Err(format!("its entry {:?} is no array", entry.name)),
    };
    let mut members = entries.into_iter().map(named).collect::<Result<Vec<_>, String>>()?;
    let metadata = members.iter().position(|(name, _)| name == METADATA).map(|at| members.remove(at).1);
    let (kind, mut metadata, version) = match metadata {
        Some(entry) => read_metadata(&entry, file).map(|(metadata, version)| (Kind::Netcl, metadata, version))?,
        None => (Kind::Npz, Map::new(), VERSION),
    };
    let dtypes = take_dtypes(&mut metadata);
    let mut tensors = Vec::with_capacity(members.len());
    for (name, entry) in members {
        let found = tensor(file, entry, dtypes.get(&name).copied());
        let Some((element, header, place)) =
            found.map_err(|what| format!("its array {name:?} cannot be used: {what}"))?
        else {
            continue;
        };
        // netcl 0.4 writes "0:weight" for what is called "0.weight" here.
        let name = if kind == Kind::Netcl { name.replace(':', ".") } else { name };
        tensors.push((Info { name, element, shape: header.shape }, place));
    }
    if version == published::VERSION {
        published::translate(&metadata, &mut tensors);
    }
    Ok(Found { kind, metadata, tensors })
}

/// The entries of a directory against the length of the file and each other.
pub(crate) fn check(entries: &[Entry], length: usize) -> Result<(), String> {
    let mut names = HashSet::with_capacity(entries.len());
    let (mut packed, mut unpacked) = (0u64, 0u64);
    for entry in entries {
        if !names.insert(&entry.name) {
            return Err(format!("two of its entries have the name {:?}", entry.name));
        }
        packed = packed.saturating_add(entry.packed);
        unpacked = unpacked.saturating_add(entry.size);
    }
    if packed > length as u64 {
        return Err(format!("its entries have {packed} bytes, more than the {length} of the file: they overlap"));
    }
    if unpacked > largest_unpacked(length) {
        return Err(format!("its entries unpack to {unpacked} bytes, too many for a file of {length}"));
    }
    Ok(())
}

/// Where the elements of a member are; `None` for text.
fn tensor(file: &Bytes, entry: Entry, named: Option<DType>) -> Result<Option<(crate::Element, Header, Place)>, String> {
    let damaged = |reason| format!("its entry is damaged ({reason})");
    let header = Header::parse(&entry.start(file, LONGEST_HEADER).map_err(damaged)?)?;
    let elements = usize::try_from(entry.size).ok().and_then(|size| size.checked_sub(header.length));
    header.check(elements.ok_or("it ends within its header")?)?;
    let ElementKind::Number(element) = header.kind(named) else { return Ok(None) };
    let (offset, strides, big_endian) = (header.length, header.strides(), header.is_big_endian());
    let storage = Storage::Member(file.clone(), Arc::new(entry));
    Ok(Some((element, header, Place { storage, offset, strides, big_endian })))
}

/// What the file says of itself, and the version of the format.
fn read_metadata(entry: &Entry, file: &Bytes) -> Result<(Map<String, Value>, u64), String> {
    if entry.size > largest_metadata(file.len()) {
        let (size, length) = (entry.size, file.len());
        return Err(format!("its metadata unpacks to {size} bytes, too many for a file of {length}"));
    }
    let unreadable = |what| format!("its metadata cannot be read: {what}");
    let content = entry.content(file).map_err(unreadable)?;
    let text = text_of(&content).map_err(unreadable)?.ok_or("its metadata is no text")?;
    let mut metadata = match serde_json::from_str(&text) {
        Ok(Value::Object(metadata)) => metadata,
        Ok(_) => return Err("its metadata is JSON, but no object".to_owned()),
        Err(error) => return Err(format!("its metadata is no JSON ({error})")),
    };
    for key in ["format", "netcl"] {
        metadata.remove(key);
    }
    let version = metadata.remove("version").as_ref().and_then(Value::as_u64).unwrap_or(VERSION);
    if version > VERSION {
        return Err(format!(
            "it has version {version} of the format, this program reads versions up to {VERSION}; use a newer netcl"
        ));
    }
    Ok((metadata, version))
}

/// The dtypes by array; those of unknown names are left to the arrays themselves.
fn take_dtypes(metadata: &mut Map<String, Value>) -> BTreeMap<String, DType> {
    let Some(Value::Object(dtypes)) = metadata.remove("dtypes") else { return BTreeMap::new() };
    dtypes.iter().filter_map(|(name, dtype)| Some((name.clone(), DType::parse(dtype.as_str()?).ok()?))).collect()
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Seek, SeekFrom, Write};
    use std::path::Path;

    use zip::write::SimpleFileOptions;
    use zip::{CompressionMethod, ZipWriter};

    use super::*;
    use crate::npy::text_to_npy;
    use crate::{Archive, Array};

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
        Array { dtype: DType::U8, shape: vec![count], bytes: vec![0; count].into() }.to_npy()
    }

    fn refused(path: &Path) -> String {
        crate::open(path).err().unwrap().to_string()
    }

    #[test]
    fn what_unpacks_to_far_more_than_the_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.netcl");
        // Within the constant: zeros that someone compressed.
        pack(&path, &[meta("{}"), ("w.npy".to_owned(), zeros(32 << 20))]);
        assert_eq!(Archive::read(&path).unwrap().get("w").unwrap().bytes.len(), 32 << 20);
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
            let text = Archive::read(&path).unwrap_err().to_string();
            assert!(text.contains("\"w\" cannot be"), "{text}");
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
        assert!(refused(&path).contains("two of its entries have the name \"w.npy\""), "{}", refused(&path));
    }

    #[test]
    fn names_that_become_the_same_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.netcl");
        pack(&path, &[("0:w.npy".to_owned(), zeros(3)), ("0.w.npy".to_owned(), zeros(3)), meta("{}")]);
        assert!(refused(&path).contains("two of its tensors have the name \"0.w\""), "{}", refused(&path));
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

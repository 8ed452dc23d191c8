//! Writes the state dictionary that `torch.load(path, weights_only=True)` reads.

use std::io::{Seek, Write};

use netcl_nn::autograd::DType;

use super::globals::storage_name;
use crate::atomic::Failure;
use crate::element::Element;
use crate::error::Result;
use crate::members::{ALIGNMENT, Members};
use crate::tensors::{Info, Tensors};
use crate::writer::put;

/// Writes a PyTorch file.
pub(crate) fn write<W: Write + Seek>(out: &mut W, tensors: &dyn Tensors) -> Result<(), Failure> {
    let infos = tensors.infos().iter().map(|info| Ok((info, info.readable(tensors.path())?)));
    let infos = infos.collect::<Result<Vec<(&Info, DType)>>>()?;
    let mut zip = Members::new(out);
    let mut member = |name: &str, content: &[u8]| {
        zip.start(&format!("archive/{name}"), content.len())?;
        zip.write_all(content)
    };
    member("data.pkl", &pickle(&infos))?;
    member(".format_version", b"1")?;
    member(".storage_alignment", ALIGNMENT.to_string().as_bytes())?;
    member("byteorder", b"little")?;
    for (index, &(info, dtype)) in infos.iter().enumerate() {
        zip.start(&format!("archive/data/{index}"), info.count() * dtype.size())?;
        put(&mut zip, tensors, index, dtype)?;
    }
    zip.start("archive/version", 2)?;
    zip.write_all(b"3\n")?;
    Ok(zip.finish()?)
}

/// The instructions for an OrderedDict of tensors, each with a storage of its own.
fn pickle(infos: &[(&Info, DType)]) -> Vec<u8> {
    // Kept as 0: the class is needed again for the hooks of each tensor, which are none.
    let mut code = b"\x80\x02ccollections\nOrderedDict\nq\x00)R(".to_vec();
    for (index, (info, dtype)) in infos.iter().enumerate() {
        text(&mut code, &info.name);
        code.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((");
        text(&mut code, "storage");
        code.extend(format!("ctorch\n{}\n", storage_name(*dtype, info.element == Element::Bool)).as_bytes());
        text(&mut code, &index.to_string());
        text(&mut code, "cpu");
        number(&mut code, info.count());
        // The tuple that names the storage, and the offset of the first element in it.
        code.extend(b"tQK\x00");
        tuple(&mut code, &info.shape);
        let strides = info.shape.iter().rev().scan(1usize, |stride, &length| {
            let before = *stride;
            *stride *= length.max(1);
            Some(before)
        });
        let mut strides: Vec<usize> = strides.collect();
        strides.reverse();
        tuple(&mut code, &strides);
        // Requires no gradient, has no hooks.
        code.extend(b"\x89h\x00)RtR");
    }
    code.extend(b"u.");
    code
}

fn text(code: &mut Vec<u8>, text: &str) {
    code.push(b'X');
    code.extend((text.len() as u32).to_le_bytes());
    code.extend(text.as_bytes());
}

fn number(code: &mut Vec<u8>, number: usize) {
    match i32::try_from(number) {
        Ok(number) => {
            code.push(b'J');
            code.extend(number.to_le_bytes());
        }
        Err(_) => {
            code.extend([0x8a, 9]);
            code.extend((number as u64).to_le_bytes());
            // The sign.
            code.push(0);
        }
    }
}

fn tuple(code: &mut Vec<u8>, numbers: &[usize]) {
    code.push(b'(');
    numbers.iter().for_each(|&one| number(code, one));
    code.push(b't');
}
